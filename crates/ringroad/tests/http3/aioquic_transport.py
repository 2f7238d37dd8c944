"""Retry, key update, change of the connection ID, resumption and early data."""
import asyncio, ssl, sys
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.h3 = H3Connection(self._quic)
        self.waiting, self.bodies = {}, {}

    def quic_event_received(self, event):
        for received in self.h3.handle_event(event):
            if isinstance(received, DataReceived):
                self.bodies[received.stream_id] = self.bodies.get(received.stream_id, b"") + received.data
            if getattr(received, "stream_ended", False):
                self.waiting.pop(received.stream_id).set_result(self.bodies.get(received.stream_id, b""))

    async def get(self, path):
        stream = self._quic.get_next_available_stream_id()
        self.waiting[stream] = self._loop.create_future()
        future = self.waiting[stream]
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path)]
        self.h3.send_headers(stream, fields, end_stream=True)
        self.transmit()
        return await asyncio.wait_for(future, 30)


async def main():
    port, tickets = int(sys.argv[1]), []

    def configuration(ticket=None):
        return QuicConfiguration(
            is_client=True, alpn_protocols=["h3"], server_name="localhost", verify_mode=ssl.CERT_NONE, session_ticket=ticket
        )

    options = dict(create_protocol=Client, session_ticket_handler=tickets.append)
    async with connect("127.0.0.1", port, configuration=configuration(), **options) as client:
        assert await client.get(b"/hello") == b"hello h3"
        client.request_key_update()
        assert await client.get(b"/hello") == b"hello h3"
        client.change_connection_id()
        assert await client.get(b"/hello") == b"hello h3"
        await asyncio.sleep(0.1)
    assert tickets, "no session ticket"
    # aioquic does not repeat early data after a Retry packet.
    is_early = sys.argv[2] == "early"
    second = connect("127.0.0.1", port, configuration=configuration(tickets[-1]), wait_connected=not is_early, **options)
    async with second as client:
        assert await client.get(b"/hello") == b"hello h3"
        assert client._quic.tls.session_resumed
        assert client._quic.tls.early_data_accepted or not is_early
    print("done")


asyncio.run(main())
