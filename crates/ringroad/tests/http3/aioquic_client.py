import asyncio, sys, ssl, time
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived, DataReceived
class C(QuicConnectionProtocol):
    def __init__(self,*a,**k):
        super().__init__(*a,**k); self.h3=H3Connection(self._quic); self.w={}; self.r={}
    def quic_event_received(self, e):
        if type(e).__name__ in("ConnectionTerminated","StreamReset","StopSendingReceived"): print("EV",e)
        for ev in self.h3.handle_event(e):
            sid=ev.stream_id
            if isinstance(ev,HeadersReceived): self.r.setdefault(sid,[[],b""])[0].append(ev.headers)
            if isinstance(ev,DataReceived): self.r.setdefault(sid,[[],b""])[1]+=ev.data
            if getattr(ev,'stream_ended',False) and sid in self.w: self.w.pop(sid).set_result(self.r[sid])
    async def req(self, method, path, body=None, host="localhost"):
        sid=self._quic.get_next_available_stream_id()
        f=self._loop.create_future(); self.w[sid]=f
        h=[(b":method",method.encode()),(b":scheme",b"https"),(b":authority",host.encode()),(b":path",path.encode())]
        if body is not None: h.append((b"content-length",str(len(body)).encode()))
        self.h3.send_headers(sid,h,end_stream=body is None)
        if body is not None: self.h3.send_data(sid,body,True)
        self.transmit()
        return await asyncio.wait_for(f,30)
async def main():
    length = int(sys.argv[2])
    cfg = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost", verify_mode=ssl.CERT_NONE)
    async with connect("127.0.0.1", int(sys.argv[1]), configuration=cfg, create_protocol=C) as c:
        heads, body = await c.req("GET", "/hello")
        assert body == b"hello h3", body
        heads, body = await c.req("GET", "/large.bin")
        assert len(body) == length, len(body)
        replies = await asyncio.gather(*[c.req("GET", "/hello") for _ in range(100)])
        assert all(body == b"hello h3" for _, body in replies)
        heads, body = await c.req("PUT", "/put/x", b"x" * length)
        assert (b":status", b"201") in heads[0], heads
    print("done")


asyncio.run(main())
