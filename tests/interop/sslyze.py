"""Scans a server with sslyze and checks what it finds. usage: sslyze.py SSLYZE ADDRESS CERTIFICATE"""

import json
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.request

SCANS = [
    "sslv2", "sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3", "early_data", "resum", "reneg", "compression", "elliptic_curves",
    "heartbleed", "robot", "openssl_ccs", "fallback", "ems", "certinfo",
]
# Authenticated encryption with forward secrecy. Every suite of TLS 1.3 is such a suite.
AEAD = re.compile(r"TLS_(ECDHE_(ECDSA|RSA)_WITH_)?(AES_(128|256)_GCM_SHA(256|384)|CHACHA20_POLY1305_SHA256)")


def resumed(address, certificate):
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(f"https://{address}/metrics", timeout=30, context=context) as answer:
        return int(re.search(r'^outrigger_tls_handshakes_total\{outcome="resumed"\} (\d+)$', answer.read().decode(), re.MULTILINE)[1])


def main():
    sslyze, address, certificate = sys.argv[1:]
    before = resumed(address, certificate)
    with tempfile.NamedTemporaryFile() as file:
        command = [sslyze, f"--json_out={file.name}", "--mozilla_config=disable", *(f"--{scan}" for scan in SCANS), address]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (server,) = json.load(file)["server_scan_results"]
    found = {}
    for name, scan in server["scan_result"].items():
        if scan["status"] != "NOT_SCHEDULED":
            assert scan["status"] == "COMPLETED", (name, scan)
            found[name] = scan["result"]
    suites = {}
    for name, result in found.items():
        if name.endswith("_cipher_suites"):
            suites[result["tls_version_used"]] = [suite["cipher_suite"]["name"] for suite in result["accepted_cipher_suites"]]
    spoken = {version: accepted for version, accepted in suites.items() if accepted}
    assert len(suites) == 6 and set(spoken) == {"TLS_1_2", "TLS_1_3"}, suites
    for version, accepted in spoken.items():
        wrong = [name for name in accepted if not AEAD.fullmatch(name) or ("ECDHE" in name) != (version == "TLS_1_2")]
        assert not wrong, f"{version}: {wrong}"
    assert not found["tls_compression"]["supports_compression"]
    assert not found["tls_1_3_early_data"]["supports_early_data"]
    renegotiation = found["session_renegotiation"]
    assert renegotiation["client_renegotiations_success_count"] == 0, renegotiation
    assert not renegotiation["is_vulnerable_to_client_renegotiation_dos"] and renegotiation["supports_secure_renegotiation"]
    assert not found["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert not found["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert found["robot"]["robot_result"] == "NOT_VULNERABLE_RSA_NOT_SUPPORTED", found["robot"]
    assert found["tls_fallback_scsv"]["supports_fallback_scsv"]
    assert found["tls_extended_master_secret"]["supports_ems_extension"]
    # sslyze takes a session for resumed only if the server sends the same ticket again. This server sends a new one each
    # time, so the server's own count tells.
    resumption = found["session_resumption"]
    count = resumed(address, certificate) - before
    assert resumption["session_id_successful_resumptions_count"] == 0, "sessions are kept in the server"
    assert count >= resumption["tls_ticket_attempted_resumptions_count"] > 0, f"{count} sessions were resumed: {resumption}"
    curves = ", ".join(curve["name"] for curve in found["elliptic_curves"]["supported_curves"])
    print("  sslyze ok:", "; ".join(f"{version}: {', '.join(names)}" for version, names in spoken.items()))
    print(f"    curves {curves}; no compression, renegotiation or early data; {count} sessions resumed with tickets")


main()
