#!/usr/bin/env python3
"""Clients behind nginx and HAProxy: the address and the user of each one reach Outrigger, and forged fields do not.

env: OUTRIGGER; nginx and haproxy in PATH or /usr/sbin
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATIENCE = 30
TOKEN = "s3cret-0123456789"
PATH = os.environ["PATH"] + ":/usr/sbin"
# The proxies connect from 127.0.0.1, which is trusted. The clients have other addresses of loopback.
FORGED = "X-Forwarded-For: 203.0.113.9\r\nForwarded: for=203.0.113.8\r\nX-User: root\r\nx-user: admin\r\n"

NGINX = """
daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
  map $remote_addr $element {{ ~^[0-9.]+$ "for=$remote_addr"; default "for=\\"[$remote_addr]\\""; }}
  upstream outrigger {{ server 127.0.0.1:{outrigger}; keepalive 1; }}
  proxy_http_version 1.1;
  proxy_set_header Host localhost;
  auth_basic "test"; auth_basic_user_file {work}/users;
  # The field that it extends, and the one that it removes.
  server {{
    listen 127.0.0.1:{nginx};
    location / {{
      proxy_pass http://outrigger;
      proxy_set_header Host localhost;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header Forwarded "";
      proxy_set_header X-User $remote_user;
    }}
  }}
  # The standard field, through a unix socket.
  server {{
    listen 127.0.0.1:{nginx_standard};
    location / {{
      proxy_pass http://unix:{work}/socket:;
      proxy_set_header Host localhost;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For "";
      proxy_set_header Forwarded $element;
      proxy_set_header X-User $remote_user;
    }}
  }}
  # Behind another proxy, which has authenticated the user.
  server {{
    listen 127.0.0.1:{nginx_inner};
    auth_basic off;
    location / {{
      proxy_pass http://outrigger;
      proxy_set_header Host localhost;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
  # A mistake: the client's field Forwarded is passed on.
  server {{
    listen 127.0.0.1:{nginx_wrong};
    location / {{
      proxy_pass http://outrigger;
      proxy_set_header Host localhost;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-User $remote_user;
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout tunnel 60s
userlist users
  user ada insecure-password one
  user bob insecure-password two
frontend clients
  bind 127.0.0.1:{haproxy}
  bind 127.0.0.1:{haproxy_outer}
  http-request auth unless {{ http_auth(users) }}
  http-request set-header X-User %[http_auth_user]
  http-request del-header forwarded
  option forwardfor
  use_backend inner if {{ dst_port {haproxy_outer} }}
  default_backend outrigger
backend outrigger
  http-request set-header Host localhost
  http-reuse always
  server one 127.0.0.1:{outrigger}
backend inner
  server one 127.0.0.1:{nginx_inner}
"""


def ports(names):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    return {name: one.getsockname()[1] for name, one in zip(names, sockets)}


def ask(port, client, user=None, fields="", path="/", upgrade=True):
    """Sends a request from an address of loopback. Returns the connection, the status and the body."""
    password = {"ada": "one", "bob": "two"}.get(user)
    if password:
        fields += f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}\r\n"
    if upgrade:
        fields += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(client, 0))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())
    reader = connection.makefile("rb")
    status = int(reader.readline().split()[1])
    length = 0
    while (line := reader.readline().strip()) != b"":
        name, value = line.split(b":", 1)
        length = int(value) if name.lower() == b"content-length" else length
    return connection, status, reader.read(length)


def clients(port):
    _, status, body = ask(port, "127.0.0.9", fields=f"Authorization: Bearer {TOKEN}\r\n", path="/status", upgrade=False)
    assert status == 200, body
    return [(client["remote"].rsplit(":", 1)[0], client["principal"]) for client in json.loads(body)["clients"]]


def wait_for(what, is_true):
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        return True
    except OSError:
        return False


def check(name, proxy, direct):
    _, status, _ = ask(proxy, "127.0.0.2", fields=FORGED)
    assert status == 401, (name, status)
    opened = []
    for client, user in [("127.0.0.2", "ada"), ("127.0.0.3", "bob"), ("127.0.0.2", "bob")]:
        # Calls of several users share the connections between the proxy and the server.
        for caller, other in [("127.0.0.2", "ada"), ("127.0.0.3", "bob")]:
            connection, status, body = ask(proxy, caller, other, FORGED, "/status", upgrade=False)
            assert status == 200, (name, status, body)
            connection.close()
        connection, status, body = ask(proxy, client, user, FORGED)
        assert status == 101, (name, status, body)
        opened.append(connection)
        expected = sorted([("127.0.0.2", "user:ada"), ("127.0.0.3", "user:bob"), ("127.0.0.2", "user:bob")][: len(opened)])
        assert sorted(clients(direct)) == expected, (name, clients(direct))
    for connection in opened:
        connection.close()
    wait_for("the clients are gone", lambda: clients(direct) == [])
    print(f"  {name} ok")


def main():
    work = pathlib.Path(tempfile.mkdtemp(prefix="outrigger-forwarded-"))
    work.chmod(0o755)
    names = ["outrigger", "nginx", "nginx_standard", "nginx_inner", "nginx_wrong", "haproxy", "haproxy_outer"]
    port = ports(names)
    (work / "users").write_text("ada:{PLAIN}one\nbob:{PLAIN}two\n")
    (work / "token").write_text(TOKEN)
    (work / "token").chmod(0o600)
    # Workers of nginx keep the user that starts it, so that they can connect to the server's unix socket.
    user = f"user {os.environ.get('USER', 'root')};" if os.getuid() == 0 else ""
    (work / "nginx.conf").write_text(user + NGINX.format(work=work, **port))
    (work / "haproxy.cfg").write_text(HAPROXY.format(**port))
    log = open(work / "log", "w+", encoding="utf-8")
    server = [os.environ["OUTRIGGER"], "echo", "--listen", f"127.0.0.1:{port['outrigger']}", "--listen", f"unix:{work}/socket"]
    server += ["--token-file", work / "token", "--trusted-proxy", "127.0.0.1", "--trusted-proxy", "unix", "--auth-header", "X-User"]
    commands = [
        server + ["--log", "debug"],
        [shutil.which("nginx", path=PATH), "-c", work / "nginx.conf", "-e", work / "nginx.log"],
        [shutil.which("haproxy", path=PATH), "-f", work / "haproxy.cfg"],
    ]
    started = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        for name in names:
            wait_for(f"{name} listens", lambda: listens(port[name]))
        direct = port["outrigger"]
        check("nginx with X-Forwarded-For", port["nginx"], direct)
        check("nginx with Forwarded, through a unix socket", port["nginx_standard"], direct)
        check("HAProxy with X-Forwarded-For", port["haproxy"], direct)
        check("nginx behind HAProxy", port["haproxy_outer"], direct)
        # A client that is no proxy.
        _, status, _ = ask(direct, "127.0.0.2", fields=FORGED)
        assert status == 401, status
        # A proxy that passes on what it should remove.
        forged = "Forwarded: for=203.0.113.8\r\n"
        connection, status, body = ask(port["nginx_wrong"], "127.0.0.2", "ada", forged)
        assert status == 101 and clients(direct) == [("127.0.0.1", "user:ada")], (status, body, clients(direct))
        connection.close()
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        log.seek(0)
        text = log.read()
        shutil.rmtree(work)
    if "(client 127.0.0.2:0) and Forwarded (client 203.0.113.8:0): neither is used" not in text:
        raise AssertionError(text)
    assert "203.0.113.9" not in text and "user:root" not in text, text
    print("  a wrong configuration is logged ok")


main()
