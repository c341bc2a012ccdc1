// Package hosts gives tests several hosts on one Linux machine: network namespaces that see each other and nothing
// else.
package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// Hosts are network namespaces, each with a name, an address and a cable to a switch that all of them share, and no way
// out. They share processors, files and users with the machine.
type Hosts struct {
	t      testing.TB
	prefix string // of all names
	names  []string
	agent  string
}

// serial numbers the Hosts of a process.
var serial atomic.Int32

// Network is the network of the hosts, as Open MPI's options take it. That of other Hosts has the same addresses, but
// is another.
const Network = "10.77.0.0/24"

// New makes n hosts, from 1 to 250, and removes them when the test ends, with the processes that still run on them. It
// skips the test if the user is not root, or if the system has no network namespaces.
func New(t testing.TB, n int) *Hosts {
	t.Helper()
	if n < 1 || n > 250 {
		t.Fatalf("hosts: %d hosts, want 1 to 250", n)
	}
	systest.FullOnly(t, "hosts, which are network namespaces")
	if os.Geteuid() != 0 {
		systest.Skip(t, systest.NotRoot, "only root can make hosts of network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		if err := systest.Install("iproute2"); err != nil {
			t.Fatalf("no ip to make hosts of network namespaces: %v", err)
		}
	}
	removeStale()
	h := &Hosts{t: t, prefix: fmt.Sprintf("%s%d-%d", family, os.Getpid(), serial.Add(1))}
	h.agent = filepath.Join(t.TempDir(), "agent") // before what follows, so that processes end before their files go
	t.Cleanup(func() { remove(h.prefix) })
	if err := ip("netns add " + h.hub()); err != nil {
		systest.Skip(t, systest.System, fmt.Errorf("no network namespaces on this system: %w", err))
	}
	must.Do(t, h.wire(n))
	return h
}

// hub is the namespace of the switch.
func (h *Hosts) hub() string { return h.prefix + "-hub" }

// wire makes the hosts, once there is a namespace for the switch.
func (h *Hosts) wire(n int) error {
	lines := []string{"-n HUB link add hub type bridge", "-n HUB link set hub up"}
	for i := range n {
		h.names = append(h.names, fmt.Sprintf("%s-h%d", h.prefix, i))
		host := strings.NewReplacer("HOST", h.names[i], "PORT", port(i), "ADDRESS", address(i))
		for _, line := range []string{
			"netns add HOST",
			"-n HOST link set lo up",
			"-n HUB link add PORT type veth peer name eth0 netns HOST",
			"-n HUB link set PORT master hub up",
			"-n HOST addr add ADDRESS/24 dev eth0",
			"-n HOST link set eth0 up",
		} {
			lines = append(lines, host.Replace(line))
		}
	}
	for _, line := range lines {
		if err := ip(strings.ReplaceAll(line, "HUB", h.hub())); err != nil {
			return err
		}
	}
	table := "127.0.0.1 localhost\n"
	for i, name := range h.names {
		table += address(i) + " " + name + "\n"
	}
	for _, name := range h.names {
		etc := filepath.Join(etcs, name) // ip netns exec mounts what is in it over the files of /etc
		if err := os.MkdirAll(etc, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(etc, "hosts"), []byte(table), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(h.agent, []byte(agent), 0o755)
}

// port is the switch's end of a host's cable.
func port(i int) string { return fmt.Sprintf("port%d", i) }

func address(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// Names are the names of the hosts, which resolve on each of them and nowhere else.
func (h *Hosts) Names() []string { return slices.Clone(h.names) }

// Cut disconnects a host, counted from 0, from the network. It may be called by any goroutine.
func (h *Hosts) Cut(i int) { h.link(i, "down") }

// Mend connects a host again.
func (h *Hosts) Mend(i int) { h.link(i, "up") }

func (h *Hosts) link(i int, state string) {
	h.t.Helper()
	if err := ip(fmt.Sprintf("-n %s link set %s %s", h.hub(), port(i), state)); err != nil {
		h.t.Error(err)
	}
}

// Wait waits until no process runs on any host, and fails the test after a minute.
func (h *Hosts) Wait() {
	h.t.Helper()
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var busy []string
		for _, name := range h.names {
			for _, pid := range pids(name) {
				command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
				busy = append(busy, fmt.Sprintf("%s: process %s, %.200q", name, pid,
					strings.ReplaceAll(string(command), "\x00", " ")))
			}
		}
		if len(busy) == 0 {
			return
		}
		if time.Since(begun) > time.Minute {
			h.t.Errorf("processes still run on the hosts:\n%s", strings.Join(busy, "\n"))
			return
		}
	}
}

// agent runs a command line on a host for a program on another one, as ssh does: it goes by the network, and hands over
// no variables of the environment but those that a login sets. An address where nobody listens answers that it refuses.
const agent = `#!/bin/sh
host=$1; shift
answer=$(LC_ALL=C timeout 4 bash -c 'exec 3<>"/dev/tcp/$0/9"' "$host" 2>&1)
case $answer in
*refused*) ;;
*) echo "agent: cannot connect to host $host: ${answer:-no answer within 4 s}" >&2; exit 255 ;;
esac
exec ip netns exec "$host" unshare --uts env -i PATH="$PATH" HOME="$HOME" sh -c 'hostname "$0" && exec sh -c "$1"' "$host" "$*"
`

// Agent is the path of a program that stands in for ssh on the hosts, as mpirun's plm_rsh_agent: AGENT HOST COMMAND…
// It ends with status 255 where the host of the caller, or that one, is cut off.
func (h *Hosts) Agent() string { return h.agent }

// Command makes a command that runs on a host, counted from 0, with the test's environment. What it leaves running is
// killed when the test ends.
func (h *Hosts) Command(i int, name string, args ...string) *exec.Cmd {
	line := h.on(i, append([]string{name}, args...)...)
	return exec.Command(line[0], line[1:]...)
}

// on is a command line that runs another one on a host.
func (h *Hosts) on(i int, line ...string) []string {
	return append([]string{"ip", "netns", "exec", h.names[i], "unshare", "--uts",
		"sh", "-c", `hostname "$0" && exec "$@"`, h.names[i]}, line...)
}

// MPIRun is a command line for mpirun on a host, counted from 0, which starts ranks on all of them, over TCP. It ends
// with extra: options and the program. A host that is cut off is noticed within about eight seconds.
func (h *Hosts) MPIRun(i, ranksPerHost int, extra ...string) []string {
	slots := fmt.Sprintf(":%d", ranksPerHost)
	return slices.Concat(h.on(i, "mpirun", "-n", fmt.Sprint(len(h.names)*ranksPerHost), "--host",
		strings.Join(h.names, slots+",")+slots, "--mca", "plm_rsh_agent", h.agent, "--mca", "btl", "tcp,self", "--mca",
		"pml", "ob1", "--mca", "btl_tcp_if_include", Network, "--mca", "oob_tcp_if_include", Network, "--mca",
		"oob_tcp_keepalive_time", "3", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca", "oob_tcp_keepalive_probes",
		"3", "--mca", "mpi_yield_when_idle", "1"), extra)
}

// family begins the names of all namespaces that tests make; the process's number follows.
const family = "shardbook-test-"

// Where ip keeps namespaces, and the files that they have instead of those in /etc.
const (
	namespaces = "/run/netns"
	etcs       = "/etc/netns"
)

// remove ends what runs in the namespaces whose names begin with a prefix, and removes them. It goes on where something
// fails: what is left is removed by the next test.
func remove(prefix string) {
	found, _ := filepath.Glob(filepath.Join(namespaces, prefix+"-*"))
	for _, path := range found {
		name := filepath.Base(path)
		end(name)
		ip("netns del " + name)
	}
	files, _ := filepath.Glob(filepath.Join(etcs, prefix+"-*"))
	for _, path := range files {
		os.RemoveAll(path)
	}
}

// end kills the processes in a namespace, and those that they start meanwhile.
func end(name string) {
	for range 100 {
		running := pids(name)
		if len(running) == 0 {
			return
		}
		for _, pid := range running {
			if n, err := strconv.Atoi(pid); err == nil {
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var made = regexp.MustCompile(`^` + family + `(\d+)-`)

// removeStale removes what tests left whose process is dead: one that was killed cleans nothing up.
func removeStale() {
	for _, folder := range []string{namespaces, etcs} {
		entries, _ := os.ReadDir(folder)
		for _, entry := range entries {
			name := made.FindStringSubmatch(entry.Name())
			if name == nil {
				continue
			}
			if pid, err := strconv.Atoi(name[1]); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
				remove(family + name[1])
			}
		}
	}
}

// pids are the processes in a namespace.
func pids(name string) []string {
	output, _ := exec.Command("ip", "netns", "pids", name).Output()
	return strings.Fields(string(output))
}

// ip runs ip(8) with a line of arguments.
func ip(line string) error {
	if output, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, output)
	}
	return nil
}
