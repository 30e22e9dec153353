"""Many requests at a time with asyncio.

FARFLASH_API=http://127.0.0.1:7420 python3 asyncio_volume.py
"""

import asyncio

import farflash

BLOCK = 4096
BLOCKS = 1000


async def main() -> None:
    cluster = farflash.AsyncCluster()
    created = await cluster.create_volume("asyncio-example", 16 << 20)
    async with await cluster.open_volume("asyncio-example", token=created.tokens.token) as volume:
        await asyncio.gather(
            *(volume.write(n * BLOCK, n.to_bytes(8) * (BLOCK // 8)) for n in range(BLOCKS))
        )
        blocks = await asyncio.gather(*(volume.read(n * BLOCK, BLOCK) for n in range(BLOCKS)))
        assert all(block[:8] == n.to_bytes(8) for n, block in enumerate(blocks))
    await cluster.delete_volume("asyncio-example", lose_data=True)
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
