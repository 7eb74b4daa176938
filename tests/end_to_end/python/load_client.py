"""Many HTTP streams at once, on bare sockets: what a load test needs and a client package hides."""

import asyncio
import json
import socket
import struct
import urllib.parse


async def open_stream(base, path, body, receive_buffer=0):
    """Sends a request; returns (reader, writer) without having read anything."""
    url = urllib.parse.urlparse(base)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    if receive_buffer:
        # Before connecting, so that the window is small from the start; `limit` stops asyncio from
        # reading ahead on its own.
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (url.hostname, url.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=receive_buffer)
    else:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def read_head(reader):
    """Returns (status, headers with lower-case names)."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers


async def events(reader, headers):
    """The payloads of `data:` lines, decoded from chunks."""
    assert headers.get("transfer-encoding") == "chunked", headers
    text = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")), 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        text += data[:-2]
        while b"\n\n" in text:
            event, text = text.split(b"\n\n", 1)
            for line in event.decode().split("\n"):
                if line.startswith("data: "):
                    yield line[6:]


async def complete(base, body):
    """Streams one completion: (status, text, last event or error)."""
    reader, writer = await open_stream(base, "/v1/completions", body)
    try:
        status, headers = await read_head(reader)
        if status != 200:
            return status, "", (headers, json.loads(await reader.read()))
        text, last = "", None
        async for data in events(reader, headers):
            if data == "[DONE]":
                return status, text, last
            last = json.loads(data)
            assert "error" not in last, last
            if last["choices"]:
                text += last["choices"][0]["text"]
        raise AssertionError("the stream ended without [DONE]")
    finally:
        writer.close()


# Of a gRPC channel whose windows stay small: else nothing that a test sends ever fills them.
SMALL_GRPC_WINDOWS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))


def reset(writer):
    """Drops the connection with a reset, as a client that dies does."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
