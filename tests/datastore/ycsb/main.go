// Runs workloads A to D and F of YCSB against a key-value server: those of go-ycsb, by its driver for Redis. Each value that is read
// is compared with the one that was written. Workload E scans, which the driver does not do.
//
//	ycsb IP:PORT RECORDS OPERATIONS
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/magiconair/properties"
	_ "github.com/pingcap/go-ycsb/db/redis"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

// counted counts operations and errors of a database, which the client only prints.
type counted struct {
	ycsb.DB
	mutex  sync.Mutex
	counts map[string]int
	first  error
}

func (c *counted) count(operation string, err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.counts[operation]++
	if err != nil && c.first == nil {
		c.first = fmt.Errorf("%s: %w", operation, err)
	}
}

func (c *counted) Read(ctx context.Context, table string, key string, fields []string) (map[string][]byte, error) {
	values, err := c.DB.Read(ctx, table, key, fields)
	c.count("reads", err)
	return values, err
}

func (c *counted) Update(ctx context.Context, table string, key string, values map[string][]byte) error {
	err := c.DB.Update(ctx, table, key, values)
	c.count("updates", err)
	return err
}

func (c *counted) Insert(ctx context.Context, table string, key string, values map[string][]byte) error {
	err := c.DB.Insert(ctx, table, key, values)
	c.count("inserts", err)
	return err
}

// run does one workload, or the load before all of them, and fails on the first error.
func run(address, records, operations, name, settings string) error {
	text := strings.Join([]string{
		"workload=core\nredis.datatype=string\nthreadcount=8\ndataintegrity=true\nsilence=false",
		"redis.addr=" + address, "recordcount=" + records, "operationcount=" + operations, settings,
	}, "\n")
	props, err := properties.LoadString(text)
	if err != nil {
		return err
	}
	measurement.InitMeasure(props)
	workload, err := ycsb.GetWorkloadCreator("core").Create(props)
	if err != nil {
		return err
	}
	db, err := ycsb.GetDBCreator("redis").Create(props)
	if err != nil {
		return err
	}
	defer db.Close()
	seen := &counted{DB: db, counts: map[string]int{}}
	start := time.Now()
	client.NewClient(props, workload, client.DbWrapper{DB: seen}).Run(context.Background())
	fmt.Printf("ycsb: %s: %v in %v\n", name, seen.counts, time.Since(start).Round(time.Millisecond))
	return seen.first
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: ycsb IP:PORT RECORDS OPERATIONS")
		os.Exit(2)
	}
	records, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, workload := range [][2]string{
		// One more than the workloads know of: go-ycsb draws zipfian keys from a range that is one too long.
		{"load", "dotransactions=false\nrecordcount=" + strconv.Itoa(records+1)},
		{"A", "readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian"},
		{"B", "readproportion=0.95\nupdateproportion=0.05\nrequestdistribution=zipfian"},
		{"C", "readproportion=1\nupdateproportion=0\nrequestdistribution=zipfian"},
		{"F", "readproportion=0.5\nupdateproportion=0\nreadmodifywriteproportion=0.5\nrequestdistribution=zipfian"},
		// The last one, since it adds records that the others do not know of.
		{"D", "readproportion=0.95\nupdateproportion=0\ninsertproportion=0.05\nrequestdistribution=latest"},
	} {
		if err := run(os.Args[1], os.Args[2], os.Args[3], workload[0], workload[1]); err != nil {
			fmt.Fprintf(os.Stderr, "ycsb: workload %s: %v\n", workload[0], err)
			os.Exit(1)
		}
	}
}
