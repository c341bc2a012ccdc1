package mpi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hosts makes network namespaces that are hosts to Open MPI, each with an address,
// a name and a cable to a switch, and no way out. They go with the test.
func hosts(t *testing.T, n int) (names []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	for _, tool := range []string{"ip", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s to make hosts of network namespaces: apt-get install iproute2 util-linux", tool)
		}
	}
	ip := func(format string, args ...any) error {
		if output, err := exec.Command("ip", strings.Fields(fmt.Sprintf(format, args...))...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %v: %s", fmt.Sprintf(format, args...), err, output)
		}
		return nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(name string) error {
		t.Cleanup(func() {
			pids, _ := exec.Command("ip", "netns", "pids", name).Output()
			for _, pid := range strings.Fields(string(pids)) {
				exec.Command("kill", "-9", pid).Run()
			}
			ip("netns del %s", name)
			os.RemoveAll(filepath.Join("/etc/netns", name))
		})
		return ip("netns add %s", name)
	}
	prefix := fmt.Sprintf("mpi%d", os.Getpid())
	hub := prefix + "hub"
	if err := add(hub); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	must(ip("-n %s link add hub type bridge", hub))
	must(ip("-n %s link set hub up", hub))
	table := "127.0.0.1 localhost\n"
	for i := 1; i <= n; i++ {
		names = append(names, fmt.Sprintf("%sh%d", prefix, i))
		table += fmt.Sprintf("10.77.0.%d %s\n", i, names[i-1])
	}
	for i, name := range names {
		must(add(name))
		must(ip("-n %s link set lo up", name))
		must(ip("-n %s link add port%d type veth peer name eth0 netns %s", hub, i, name))
		must(ip("-n %s link set port%d master hub up", hub, i))
		must(ip("-n %s addr add 10.77.0.%d/24 dev eth0", name, i+1))
		must(ip("-n %s link set eth0 up", name))
		etc := filepath.Join("/etc/netns", name)
		must(os.MkdirAll(etc, 0o755))
		must(os.WriteFile(filepath.Join(etc, "hosts"), []byte(table), 0o644))
	}
	return names
}

// onHosts runs a case with one rank on each of three hosts, over TCP. Open MPI
// knows hosts by their names, so each has its own.
func onHosts(t *testing.T, play string) job {
	t.Helper()
	path := ready(t)
	names := hosts(t, 3)
	// Open MPI's agent gets a host and a command line, as ssh does.
	agent := filepath.Join(t.TempDir(), "agent")
	const script = "#!/bin/sh\nhost=$1; shift\nexec ip netns exec $host unshare --uts sh -c \"hostname $host; exec sh -c \\\"\\$0\\\"\" \"$*\"\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	const network = "10.77.0.0/24"
	line := []string{agent, names[0], "mpirun", "-n", "3", "--host", strings.Join(names, ":1,") + ":1", "-x", envCase,
		"--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
		"--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network, path}
	return start(t, play, line[0], line[1:]...)
}

func TestHosts(t *testing.T) { onHosts(t, "random, fewer").mustBeWell(t, 3) }

// TestHostIsCutOff has the host of rank 2 lose its network for a while.
func TestHostIsCutOff(t *testing.T) {
	j := onHosts(t, "cut off")
	for _, rank := range []int{0, 1} {
		j.mustSay(t, rank, "all-reduce #2: rank 2 did not arrive within 2s (its last call here was barrier #1)")
	}
	if j.status != 75 {
		t.Errorf("exit status %d, want the ranks' own, 75", j.status)
	}
}
