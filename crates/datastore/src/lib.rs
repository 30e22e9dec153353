//! A key-value server on RocksDB that speaks RESP.
