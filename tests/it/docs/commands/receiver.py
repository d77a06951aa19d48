"""A webhook receiver for a walk through the pages.

`python3 receiver.py NAME` writes its URL to `NAME-url`, and each body on a line of `NAME.log`. The receiver answers 502 while
the file `NAME-down` exists, and ends when the walk removes its folder.
"""

import http.server
import os
import sys

name = sys.argv[1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        down = os.path.exists(f"{name}-down")
        if not down:
            with open(f"{name}.log", "a") as log:
                log.write(body.strip().replace("\n", " ") + "\n")
        self.send_response(502 if down else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
server.timeout = 1
with open(f"{name}-url", "w") as file:
    file.write(f"http://127.0.0.1:{server.server_port}")
while os.path.exists(f"{name}-url"):
    server.handle_request()
