#!/usr/bin/env python3
"""Compute nodes that reach only their login node train through its relay; see README.md beside this file."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from stage import Stage, real

SITES = ("alder", "birch")
SHAPE = {"partition": "gpu", "gpus": 4, "walltime": "00:03:00", "wanted": 1, "chain": "begin", "pace": 12.0}
# The cluster lives in the compute nodes' network; the login node has its commands, and nothing else of it.
COMMAND = '#!/bin/bash\nexec ip netns exec {netns} {real} "$@"\n'
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sacctmgr", "sinfo")
RELAY = """[relay]
listen = "{address}:0"
file = "{name}.relay.json"
[checks]
free_gib_min = 0
free_inodes_min = 0
"""
NO_RELAY = """[checks]
free_gib_min = 0
free_inodes_min = 0
"""
# Run as a job: can this node open a connection to that place?
REACH = """#!/bin/bash
timeout 8 bash -c 'exec 3<>/dev/tcp/{host}/{port}' 2>/dev/null && echo open || echo closed
"""


class Sites(Stage):
    def __init__(self, args):
        super().__init__(args.hansa, args.clusters, args.port)
        self.args = args
        self.wan_tool = str(pathlib.Path(args.wan).resolve())
        self.env |= {"WAN_DIR": str(self.root / "wan"), "WAN_PREFIX": "hq-", "WAN_NET": args.net}
        self.result = {"reach": {}}

    def wan(self, *words):
        done = subprocess.run([self.wan_tool, *words], env=self.env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def on(self, host):
        return ("ip", "netns", "exec", self.wan("netns", host))

    def set_up(self):
        hosts = ["vm", *(f"{role}-{name}" for name in SITES for role in ("login", "nodes"))]
        self.wan("up", "rtt=40ms", "rate=200mbit", *hosts)
        for name in SITES:
            nodes = f"nodes-{name}"
            self.wan("set", f"login-{name}", nodes, "rtt=200us", "rate=1gbit")
            for host in hosts:
                if host not in (nodes, f"login-{name}"):
                    self.wan("cut", nodes, host)
        self.wan("cut", "login-alder", "login-birch")
        self.before = self.traffic()
        self.make_run(self.args.rounds)
        self.up([f"{name}@{self.wan('netns', f'nodes-{name}')}" for name in SITES])
        self.url = self.serve(self.wan("addr", "vm"), prefix=self.on("vm"))
        for name in SITES:
            self.run("token", "add", name, "--data", "data", "--out", f"{name}.token.toml")
            relay = RELAY.format(address=self.wan("addr", f"login-{name}"), name=name)
            self.profile(name, relay, url=self.url, **SHAPE)
            self.profile(name, NO_RELAY, file=f"{name}-without.toml", url=self.url, **SHAPE)
            programs = self.root / f"bin-{name}"
            programs.mkdir()
            for command in COMMANDS:
                text = COMMAND.format(netns=self.wan("netns", f"nodes-{name}"), real=real(command))
                (programs / command).write_text(text)
                (programs / command).chmod(0o755)
        self.say("two clusters are up, each in a network that leads to its login node only")

    def login(self, name):
        return dict(self.env, PATH=f"{self.root / ('bin-' + name)}:{os.environ['PATH']}")

    def start_site(self, name, *more):
        words = ["site", "run", f"{name}.toml", "--json", *more]
        self.start(f"site-{name}", *words, env=self.login(name), prefix=self.on(f"login-{name}"))

    def traffic(self):
        """Bytes that came through, by direction, and packets that the cuts swallowed."""
        found = {}
        for line in self.wan("status").splitlines():
            link = re.match(r"link (\S+) (\S+) .*\bbytes=(\d+) .*\bdropped_cut=(\d+)", line)
            if link:
                found[f"{link[1]} {link[2]}"] = (int(link[3]), int(link[4]))
        return found

    def reach(self, name, what, host, port):
        """Asked by a job on a compute node."""
        out = self.root / f"reach-{name}-{what}.out"
        script = REACH.format(host=host, port=port)
        words = ["sbatch", "--wait", "--chdir=/", f"--output={out}", "--partition=gpu", "--time=1"]
        self.slurm(name, *words, stdin=script)
        answer = out.read_text().strip()
        self.result["reach"][f"{name}: {what}"] = answer
        self.say(f"{name}: from a compute node, {what} is {answer}")
        return answer

    def check(self, name, profile):
        words = [*self.on(f"login-{name}"), self.hansa, "site", "check", profile, "--compute", "--json"]
        done = subprocess.run(words, cwd=self.root, env=self.login(name), capture_output=True, text=True)
        findings = {row["what"]: row for row in json.loads(done.stdout)}
        found = findings.get("compute node: coordinator", {"verdict": "missing", "found": done.stdout})
        self.say(f"{name}: site check --compute with {profile}: {found['verdict']}: {found['found'][:120]}")
        return found["verdict"]

    def nobody_gets_out(self):
        """Before the relay: every way out is closed, and the check says so."""
        host, port = self.url.rsplit("/", 1)[1].rsplit(":", 1)
        fine = True
        for name in SITES:
            fine &= self.reach(name, "the coordinator", host, port) == "closed"
            fine &= self.check(name, f"{name}-without.toml") == "bad"
            fine &= self.check(name, f"{name}.toml") == "good"
        return fine

    def relay_of(self, name):
        file = self.root / f"{name}.relay.json"
        return json.loads(file.read_text())["url"].rsplit("/", 1)[1].rsplit(":", 1)

    def replicas(self):
        done = subprocess.run(
            [*self.on("vm"), self.hansa, "status", "--data", "data", "--json"],
            cwd=self.root, env=self.env, capture_output=True,
        )
        return json.loads(done.stdout)["replicas"] if done.returncode == 0 else []

    def committed(self):
        found = dict.fromkeys(SITES, 0)
        for replica in self.replicas():
            found[replica["site"]] += replica["tally"]["committed"]
        return found

    def trains(self, name, beyond):
        return self.until(f"{name} trains", lambda: self.committed()[name] > beyond)

    def play(self):
        fine = self.nobody_gets_out()
        for name in SITES:
            self.start_site(name)
        for name in SITES:
            self.trains(name, 0)
        self.say(f"both sites train: windows committed {self.committed()}")
        host, port = self.relay_of("alder")
        fine &= self.reach("alder", "its own relay", host, port) == "open"
        fine &= self.reach("birch", "the other site's relay", host, port) == "closed"
        # Without its login node a site is silent, and nothing of its is lost.
        self.kill("site-alder")
        self.say("alder: site process and relay killed")
        time.sleep(25)
        before = self.committed()
        time.sleep(10)
        silent = self.committed()
        self.say(f"windows committed: {before}, 10 s later {silent}")
        fine &= silent["alder"] == before["alder"]
        self.start_site("alder", "--take-over")
        self.trains("alder", silent["alder"])
        self.say(f"alder: trains again through a relay at another port: {self.committed()}")
        last = {}

        def over():
            last.update({name: count for name, count in self.committed().items() if count})
            time.sleep(2)
            return self.children["serve"].poll() is not None

        self.until("the run's end", over, 1800)
        self.say("the run is over")
        self.result["committed"] = last
        return fine and all(last.get(name, 0) > 0 for name in SITES)

    def judge(self, fine):
        exact, result = self.verdict()
        result |= self.result
        now = self.traffic()
        table = {}
        for name in SITES:
            ways = {
                "nodes to coordinator": f"nodes-{name} vm",
                "nodes to login": f"nodes-{name} login-{name}",
                "login to coordinator": f"login-{name} vm",
                "coordinator to login": f"vm login-{name}",
                "login to nodes": f"login-{name} nodes-{name}",
            }
            for what, link in ways.items():
                passed, dropped = (a - b for a, b in zip(now[link], self.before[link]))
                table[f"{name}: {what}"] = {"bytes": passed, "packets_cut": dropped}
                print(f"{name}: {what}: {passed} bytes, {dropped} packets lost in the cut")
            fine &= table[f"{name}: nodes to coordinator"]["bytes"] == 0
        result["traffic"] = table
        result["story"] = self.story
        print(f"windows committed: {result.get('committed')}")
        if self.args.out:
            pathlib.Path(self.args.out).write_text(json.dumps(result, indent=1))
        return fine and exact

    def strike(self):
        super().strike()
        subprocess.run([self.wan_tool, "down"], env=self.env)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", required=True, help="the script that starts clusters")
    parser.add_argument("--wan", required=True, help="the script that makes hosts and cuts between them")
    parser.add_argument("--hansa", default="target/debug/hansa")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--port", type=int, default=27000)
    parser.add_argument("--net", default="10.78.0", help="first three numbers of the hosts' addresses")
    parser.add_argument("--out")
    sites = Sites(parser.parse_args())
    try:
        sites.set_up()
        fine = sites.judge(sites.play())
    finally:
        sites.strike()
    print(f"files: {sites.root}", file=sys.stderr)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
