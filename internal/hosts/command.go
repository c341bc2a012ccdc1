package hosts

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

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
