"""Checks of tests/tls/stress.py: certificates that are replaced, and certificates of clients."""

import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

from peers import AUTHORIZATION, PATIENCE, connect, frame, read_head, upgrade
from tls_peers import CLOSE, VERSIONS, Tls, dial, echo, ends, join, leave, open_tls, read_message, watching


def presented(port, context):
    with dial(port, context) as client:
        return client.tls.getpeercert(binary_form=True)


def replace(certificates, certificate, key):
    """Replaces the files of the server, each at once."""
    for source, target in (certificate, "served.pem"), (key, "served.key"):
        if source is None:
            os.unlink(certificates.path(target))
        else:
            shutil.copy2(certificates.path(source), certificates.path("new"))
            os.replace(certificates.path("new"), certificates.path(target))


def wait_until(is_true, what):
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def reload(binary, certificates):
    """new files and SIGHUP while 100 clients echo: no client notices, new ones see the new certificate; bad files change nothing"""
    certificates.issue("second", "localhost", "DNS:localhost,IP:127.0.0.1")
    with open(certificates.path("bad.pem"), "w") as file:
        file.write("-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n")
    replace(certificates, "server.pem", "server.key")
    with watching(binary, certificates, name="served") as server:
        stopped, counts, wrong = threading.Event(), [0] * 100, []

        def work(number):
            try:
                context = certificates.context(VERSIONS[number % 2])
                with open_tls(server.port, context) as client:
                    while not stopped.wait(0.02):
                        echo(client, b"%d" % counts[number])
                        counts[number] += 1
                    leave(client)
            except Exception as error:
                wrong.append(f"client {number} after {counts[number]} echoes: {error!r}")

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(counts))]
        for thread in threads:
            thread.start()
        wait_until(lambda: min(counts) > 0 or wrong, "the clients do not begin")
        rounds = 6
        for number in range(rounds):
            new = ["second", "server"][number % 2]
            replace(certificates, f"{new}.pem", f"{new}.key")
            before = list(counts)
            server.server.process.send_signal(signal.SIGHUP)
            der = certificates.der(new)
            for version in VERSIONS:
                context = certificates.context(version)
                wait_until(lambda: presented(server.port, context) == der, f"round {number}: the new certificate is not used")
            wait_until(lambda: all(now > then + 2 for now, then in zip(counts, before)) or wrong, "a client has no echoes")
            assert not wrong, wrong
        # The certificate of the server is `server` by now.
        for certificate, key, what in [
            ("bad.pem", "server.key", "a bad certificate"),
            ("openssl.cnf", "server.key", "a file without a certificate"),
            ("server.pem", "second.key", "a key that does not match"),
            ("second.pem", "bad.pem", "a bad key"),
            (None, "server.key", "no certificate"),
            ("second.pem", None, "no key"),
        ]:
            replace(certificates, "server.pem", "server.key")
            replace(certificates, certificate, key)
            begin = server.server.log_size()
            server.server.process.send_signal(signal.SIGHUP)
            try:
                line = server.log_since(begin, r"(?m)^.*(WARN|ERROR).*$")[0]
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from None
            # A key or its path must not be confused: the line names a file of ours and not its content.
            assert "served" in line, f"{what}: the log names no file: {line}"
            for version in VERSIONS:
                got = presented(server.port, certificates.context(version))
                assert got == certificates.der("server"), f"{what}: the certificate changed"
        # A missing file may be put back.
        replace(certificates, "second.pem", "second.key")
        server.server.process.send_signal(signal.SIGHUP)
        der, context = certificates.der("second"), certificates.context()
        wait_until(lambda: presented(server.port, context) == der, "the certificate after the bad ones is not used")
        stopped.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not wrong, wrong
        with open(certificates.path("server.key")) as file:
            secret = file.read().split("\n")[1].encode()
        assert secret not in server.server.log(), "the key is in the log"
        return f"{sum(counts)} echoes of {len(counts)} clients, {rounds} new certificates and 6 bad ones"


def expiry(binary, certificates):
    """a certificate that expires within 14 days is warned about, and the metric tells when"""
    for name, days, warned in ("soon", 3, True), ("later", 60, False):
        certificates.issue(name, "localhost", "DNS:localhost,IP:127.0.0.1", days=days)
        with watching(binary, certificates, name=name) as server:
            left = server.metrics()["outrigger_tls_certificate_expiry_seconds"]
            end = ssl.cert_time_to_seconds(
                subprocess.run(
                    ["openssl", "x509", "-noout", "-enddate", "-in", certificates.path(f"{name}.pem")],
                    capture_output=True, text=True, check=True,
                ).stdout.strip().partition("=")[2]
            )
            # Either a point in time or what is left until it.
            assert min(abs(left - end), abs(left - (end - time.time()))) < 60, f"{left} is not {end}"
            log = server.server.log().lower()
            assert (b"expire" in log) == warned, f"{days} days: {log}"


def exposed_key(binary, certificates):
    """a key file that others can read is warned about; its content is never in the log"""
    certificates.issue("exposed", "localhost", "DNS:localhost,IP:127.0.0.1")
    os.chmod(certificates.path("exposed.key"), 0o644)
    with watching(binary, certificates, name="exposed") as server:
        server.log_since(0, r"(?i)(WARN|ERROR).*exposed\.key")
    with watching(binary, certificates) as server:
        assert b"server.key" not in server.server.log(), "a key file that only its owner can read is warned about"


def listeners(binary, certificates):
    """unix sockets and inherited sockets speak plain text unless tls: asks for TLS"""
    inherited = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    paths = [certificates.path("plain.sock"), certificates.path("tls.sock")]
    listens = [f"unix:{paths[0]}", f"tls:unix:{paths[1]}", f"fd:{inherited[0].fileno()}", f"tls:fd:{inherited[1].fileno()}"]
    command = [binary, "echo", "--no-auth", "--log", "error", *certificates.options()]
    for listen in listens:
        command += ["--listen", listen]
    descriptors = [listener.fileno() for listener in inherited]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=descriptors) as process:
        try:
            told = [process.stdout.readline().decode() for _ in listens]
            for number, target in enumerate([*paths, *(listener.getsockname() for listener in inherited)]):
                is_encrypted = number % 2 == 1
                assert ("wss" in told[number]) == is_encrypted, told[number]
                with socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET) as raw:
                    raw.settimeout(PATIENCE)
                    raw.connect(target)
                    client = Tls(raw, certificates.context()).handshake() if is_encrypted else raw
                    client.sendall(upgrade("/", b""))
                    read_head(client)
                    echo(client)
        finally:
            process.terminate()
    for listener in inherited:
        listener.close()


# Certificates of clients.


def refused(port, context, extra=AUTHORIZATION, session=None):
    """Tries to use the server. Returns the alert with which it refuses, which comes after the handshake with TLS 1.3."""
    try:
        with dial(port, context, session=session) as client:
            client.sendall(upgrade("/echo", extra))
            head = client.recv(4096)
    except ssl.SSLError as error:
        return error.reason
    except ConnectionError as error:
        return type(error).__name__
    raise AssertionError(f"a client was let in: {head!r}")


def mutual(binary, certificates):
    """only clients with a certificate of the CA, with --tls-client-auth without a token, and the log names them"""
    certificates.authority("other-ca")
    certificates.issue("laptop", "some laptop", "DNS:laptop.example,DNS:second.example")
    certificates.issue("nameless", "The Common Name")
    certificates.issue("stranger", "stranger", "DNS:laptop.example", authority="other-ca")
    certificates.request("self-made", "laptop.example", "leaf")
    certificates.expired("old", "old")
    certificates.issue("mailbox", "mail", "email:someone@example.org")
    ca = ["--tls-client-ca", certificates.path("ca.pem"), "--log", "debug"]
    names = {"laptop": "laptop.example", "nameless": "The Common Name", "mailbox": "someone@example.org"}
    alerts = {
        None: {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"},
        "stranger": {"TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR", "SSLV3_ALERT_BAD_CERTIFICATE"},
        "self-made": {"TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR", "SSLV3_ALERT_BAD_CERTIFICATE"},
        "old": {"SSLV3_ALERT_CERTIFICATE_EXPIRED"},
    }
    told = set()
    for only_certificate in False, True:
        options = [*ca, "--tls-client-auth"] if only_certificate else ca
        with watching(binary, certificates, *options, client="laptop") as server:
            for version in VERSIONS:
                for client, allowed in alerts.items():
                    got = refused(server.port, certificates.context(version, client))
                    told.add(f"{client or 'none'}: {got}")
                    assert got in allowed, f"{version.name}, client certificate {client}: {got}, not {allowed}"
                for client, name in names.items():
                    context, begin = certificates.context(version, client), server.server.log_size()
                    with dial(server.port, context) as connection:
                        echo(join(connection))
                        session = connection.tls.session
                        leave(connection)
                    server.log_since(begin, name)
                    # Without a token.
                    with dial(server.port, context, session=session) as connection:
                        assert connection.tls.session_reused, f"{version.name}: the session was not resumed"
                        begin = server.server.log_size()
                        connection.sendall(upgrade("/echo", b""))
                        status = read_head(connection).split()[1]
                        assert status == (b"101" if only_certificate else b"401"), f"{version.name}, {client}: {status}"
                        if only_certificate:
                            # A resumed session has the certificate of the session that it resumes.
                            server.log_since(begin, name)
                            echo(connection)
                            leave(connection)
    # Without --tls-client-ca, the flag makes no sense.
    done = subprocess.run(
        [binary, "echo", "--listen", "127.0.0.1:0", *certificates.options(), "--tls-client-auth"],
        capture_output=True, text=True, timeout=PATIENCE,
    )
    assert done.returncode != 0 and "--tls-client-ca" in done.stderr, (done.returncode, done.stderr)
    return "; ".join(sorted(told))


def revocation(binary, certificates):
    """when another --tls-client-ca is loaded, clients of the old one end, and their sessions are not resumed"""
    certificates.authority("new-ca")
    certificates.issue("old-client", "old", "DNS:old.example")
    certificates.issue("new-client", "new", "DNS:new.example", authority="new-ca")

    def trust(authority, server=None):
        shutil.copy2(certificates.path(f"{authority}.pem"), certificates.path("new"))
        os.replace(certificates.path("new"), certificates.path("clients.pem"))
        if server:
            begin = server.server.log_size()
            server.server.process.send_signal(signal.SIGHUP)
            server.log_since(begin, "reloaded the TLS settings")

    trust("ca")
    options = ["--tls-client-ca", certificates.path("clients.pem"), "--tls-client-auth"]
    with watching(binary, certificates, *options, client="old-client") as server:
        for version in VERSIONS:
            context = certificates.context(version, "old-client")
            with dial(server.port, context) as old:
                echo(join(old, extra=b""))
                trust("new-ca", server)
                code = read_message(old)[1][:2]
                assert code == b"\x03\xf0", f"{version.name}: the old client got {code} and not CLOSE 1008"
                old.sendall(frame(CLOSE, code))
                ends(old)
                got = refused(server.port, context, session=old.tls.session)
                assert got in ("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR"), f"{version.name}: {got}"
            with dial(server.port, certificates.context(version, "new-client")) as new:
                echo(join(new, extra=b""))
                leave(new)
            trust("ca", server)
        revoked = server.settle()['outrigger_disconnects_total{cause="revoked"}']
        assert revoked == 2, f"{revoked:.0f} clients are counted as revoked, not 2"


def self_signed(binary, certificates):
    """--tls-self-signed: the printed fingerprint is that of the certificate, which --tls-dir keeps"""
    folder = certificates.path("kept")
    fingerprints = []
    for options in [], ["--tls-dir", folder], ["--tls-dir", folder]:
        command = [binary, "echo", "--listen", "127.0.0.1:0", "--tls-self-signed", *options]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                told, line = b"", b"-"
                while line and not (b"listening" in told and b"fingerprint" in told):
                    line = process.stdout.readline()
                    told += line
                port = int(re.search(rb"wss://[^:/]*:(\d+)/", told)[1])
                text = re.search(rb"certificate SHA-256 fingerprint ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})\n", told)[1].decode()
                pem = ssl.get_server_certificate(("127.0.0.1", port))
                der = ssl.PEM_cert_to_DER_cert(pem)
                assert hashlib.sha256(der).hexdigest().upper() == text.replace(":", ""), f"{text} is not its fingerprint"
                # A client that trusts this certificate is content with each of its names.
                context = ssl.create_default_context(cadata=pem)
                for name in "localhost", "127.0.0.1", socket.gethostname():
                    with context.wrap_socket(connect(port), server_hostname=name) as client:
                        client.sendall(upgrade("/", b""))
                        read_head(client)
                        echo(client)
                fingerprints.append(text)
            finally:
                process.terminate()
                process.stderr.read()
    assert fingerprints[0] != fingerprints[1] == fingerprints[2], fingerprints
    for file in os.listdir(folder):
        mode = os.stat(os.path.join(folder, file)).st_mode & 0o777
        with open(os.path.join(folder, file)) as opened:
            assert "PRIVATE KEY" not in opened.read() or mode == 0o600, f"{file} has the mode {mode:o}"
