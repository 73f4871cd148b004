#!/usr/bin/env python3
"""Checks examples/cluster/kubernetes beyond what a schema can: references between manifests, time limits, and valid settings.

usage: tests/deploy/cluster_manifests.py OUTRIGGER

* Every Secret, ConfigMap, key, volume, port and label that a manifest refers to exists.
* A pod has enough time to stop.
* Pods have minimal rights.
* HAProxy, NATS and Outrigger accept the settings in the manifests.

Needs the package PyYAML, nats-server and haproxy.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "examples/cluster/kubernetes"


def seconds(text):
    return int(text.removesuffix("s"))


class Manifests:
    def __init__(self):
        self.all = [document for file in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())]
        self.workloads = [one for one in self.all if one["kind"] in ("Deployment", "StatefulSet")]

    def named(self, kind, name):
        found = [one for one in self.all if one["kind"] == kind and one["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} of {kind}/{name}"
        return found[0]

    def pods(self, labels):
        """The pod specifications with these labels."""
        assert labels
        templates = [one["spec"]["template"] for one in self.workloads]
        found = [one["spec"] for one in templates if labels.items() <= one["metadata"]["labels"].items()]
        assert found, f"no pod has {labels}"
        return found

    def keys(self, kind, name):
        resource = self.named(kind, name)
        return set(resource.get("data", {})) | set(resource.get("stringData", {}))


def ports(pod):
    return {port["name"]: port["containerPort"] for container in pod["containers"] for port in container["ports"]}


def check_workload(manifests, workload):
    spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    if workload["kind"] == "StatefulSet":
        assert manifests.named("Service", spec["serviceName"])["spec"]["clusterIP"] == "None"
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for volume in volumes.values():
        if "secret" in volume:
            keys = manifests.keys("Secret", volume["secret"]["secretName"])
            assert {item["key"] for item in volume["secret"].get("items", [])} <= keys
        else:
            assert manifests.keys("ConfigMap", volume["configMap"]["name"])
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes) | claims
        assert "memory" in container["resources"]["limits"]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports(pod)
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert reference["key"] in manifests.keys("Secret", reference["name"]), reference


def check_references(manifests):
    for one in manifests.all:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            for pod in manifests.pods(spec["selector"]):
                assert {port["targetPort"] for port in spec["ports"]} <= set(ports(pod)), one
        elif one["kind"] == "PodDisruptionBudget":
            assert manifests.pods(spec["selector"]["matchLabels"])
        elif one["kind"] == "NetworkPolicy":
            own = manifests.pods(spec["podSelector"]["matchLabels"])
            for rule in spec["ingress"]:
                assert all({port["port"] for port in rule["ports"]} <= set(ports(pod)) for pod in own), rule
                for peer in rule.get("from", []):
                    manifests.pods(peer["podSelector"]["matchLabels"])
            for rule in spec["egress"]:
                for peer in rule["to"]:
                    for pod in manifests.pods(peer["podSelector"]["matchLabels"]) if "podSelector" in peer else []:
                        assert {port["port"] for port in rule["ports"]} <= set(ports(pod)), rule
    policies = {one["metadata"]["name"] for one in manifests.all if one["kind"] == "NetworkPolicy"}
    budgets = {one["metadata"]["name"] for one in manifests.all if one["kind"] == "PodDisruptionBudget"}
    names = {one["metadata"]["name"] for one in manifests.workloads}
    assert names == policies == budgets, (names, policies, budgets)


def check_rooms(manifests, outrigger, folder):
    workload = manifests.named("StatefulSet", "rooms")
    pod = workload["spec"]["template"]["spec"]
    container, = pod["containers"]
    args = container["args"]
    drain = seconds(args[args.index("--drain-timeout") + 1])
    assert pod["terminationGracePeriodSeconds"] > 2 * drain
    variables = {variable["name"] for variable in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(args))) <= variables
    assert variables == {"NODE", "NATS_URL", "NATS_TOKEN", "REPLICAS"}
    replicas = manifests.named("StatefulSet", "nats")["spec"]["replicas"]
    assert {"name": "REPLICAS", "value": str(replicas)} in container["env"]

    token = folder / "token"
    token.write_text(manifests.named("Secret", "rooms")["stringData"]["token"])
    token.chmod(0o600)
    assert args[args.index("--token-file") + 1] == "/token/token"
    args = [str(token) if arg == "/token/token" else arg.replace("$(NODE)", "rooms-0") for arg in args]
    args[args.index("--"):] = ["--check", "--", sys.executable, str(ROOT / "examples/cluster/chat.py")]
    subprocess.run([outrigger, *args], check=True, stdout=subprocess.DEVNULL)
    return workload["spec"]["replicas"]


def check_haproxy(manifests, folder, replicas):
    settings = manifests.named("ConfigMap", "haproxy")["data"]["haproxy.cfg"]
    servers = re.findall(r'(?m)^ +server (\S+) "(\S+?)\.rooms\.\$\{NAMESPACE\}\.svc\.cluster\.local:7070" cookie (\S+)$', settings)
    assert servers == [(f"rooms-{number}",) * 3 for number in range(replicas)], servers
    pod = manifests.named("Deployment", "haproxy")["spec"]["template"]["spec"]
    container, = pod["containers"]
    for name, port in ports(pod).items():
        assert re.search(rf"(?m)^frontend {name}\n  bind :{port}$", settings), name
    last = container["lifecycle"]["preStop"]["sleep"]["seconds"] + seconds(re.search(r"hard-stop-after (\S+)", settings)[1])
    assert pod["terminationGracePeriodSeconds"] > last
    # What decides where a member goes is as in the tested example.
    tested = (ROOT / "examples/cluster/haproxy.cfg").read_text()
    for line in re.findall(r"(?m)^ +((?:timeout|retries|option|retry-on|http-|balance|cookie|default-server) ?.*)$", tested):
        assert re.search(rf"(?m)^ +{re.escape(line)}", settings), f"haproxy.yaml lacks: {line}"
    file = folder / "haproxy.cfg"
    file.write_text(settings)
    subprocess.run(["haproxy", "-c", "-q", "-f", file], check=True, env={**os.environ, "NAMESPACE": "default"})


def check_nats(manifests, folder):
    workload = manifests.named("StatefulSet", "nats")
    settings = manifests.named("ConfigMap", "nats")["data"]["nats.conf"]
    for number in range(workload["spec"]["replicas"]):
        assert f"nats://nats-{number}.nats:6222" in settings
    pod = workload["spec"]["template"]["spec"]
    for port in ports(pod).values():
        assert f"0.0.0.0:{port}\n" in settings
    file = folder / "nats.conf"
    file.write_text(settings)
    token = manifests.named("Secret", "rooms")["stringData"]["nats"]
    environment = {**os.environ, "POD_NAME": "nats-0", "NATS_TOKEN": token}
    subprocess.run(["nats-server", "-t", "-c", file], check=True, env=environment, stderr=subprocess.DEVNULL)


def main(outrigger):
    os.environ["PATH"] += ":/usr/sbin"
    manifests = Manifests()
    for workload in manifests.workloads:
        check_workload(manifests, workload)
    check_references(manifests)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        replicas = check_rooms(manifests, os.path.abspath(outrigger), folder)
        check_haproxy(manifests, folder, replicas)
        check_nats(manifests, folder)
    print(f"  {len(manifests.all)} manifests refer to each other correctly, and their settings are valid")


if __name__ == "__main__":
    main(*sys.argv[1:])
