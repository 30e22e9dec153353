"""Makes a volume, uses it in every way, and deletes it.

FARFLASH_API=http://127.0.0.1:7420 python3 volume.py
"""

import farflash

BLOCK = 4096


def main() -> None:
    cluster = farflash.Cluster()
    created = cluster.create_volume("python-example", 16 << 20)
    try:
        with cluster.open_volume("python-example", token=created.tokens.token) as volume:
            use(volume)
        with farflash.open_file("python-example", token=created.tokens.token) as file:
            file.seek(-10, 2)
            file.write(b"the end")
            file.seek(-10, 2)
            assert file.read() == b"the end\0\0\0"
    finally:
        cluster.delete_volume("python-example", lose_data=True)
    print("done")


def use(volume: farflash.Volume) -> None:
    print(f"{volume.uuid}: {volume.size} bytes at {volume.address}")
    volume.write(0, b"\1" * BLOCK + b"\2" * BLOCK)
    blocks = bytearray(2 * BLOCK)
    volume.readinto(0, memoryview(blocks)[:BLOCK])
    assert blocks == b"\1" * BLOCK + bytes(BLOCK)

    # Of two who change the same block, one learns that the other was quicker.
    assert volume.compare_and_swap(BLOCK, b"\2" * BLOCK, b"\3" * BLOCK)
    swap = volume.compare_and_swap(BLOCK, b"\3" * 100 + bytes(BLOCK - 100), b"\4" * BLOCK)
    assert not swap and swap.miscompare == 100

    volume.deallocate(0, BLOCK)
    assert volume.compare(0, bytes(BLOCK))
    try:
        volume.read(0, 10)
    except farflash.Misaligned as error:
        print(error)


if __name__ == "__main__":
    main()
