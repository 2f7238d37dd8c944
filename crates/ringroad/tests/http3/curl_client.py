"""curl with ngtcp2: requests, an upload, a resumed session."""
import sys
from curl_cffi import CurlHttpVersion, requests

port, length = int(sys.argv[1]), int(sys.argv[2])
base = f"https://localhost:{port}"
options = dict(http_version=CurlHttpVersion.V3ONLY, verify=False, timeout=60)
for _ in range(2):
    with requests.Session() as session:
        hello = session.get(base + "/hello", **options)
        assert hello.text == "hello h3", hello.text
        large = session.get(base + "/large.bin", **options)
        assert len(large.content) == length, len(large.content)
        stored = session.put(base + "/put/curl", data=large.content, **options)
        assert stored.status_code < 300, stored.status_code
        for _ in range(50):
            assert session.get(base + "/hello", **options).text == "hello h3"
print("done")
