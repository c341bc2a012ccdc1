package launch

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

func TestProbe(t *testing.T) {
	defer systest.NoLeaks(t)()
	// The silent host's agent leaves a process behind that holds its output.
	agent := script(t, "agent", `case $1 in
up*) shift; exec "$@" ;;
down) echo first >&2; echo "ssh: connect to host down: refused" >&2; exit 255 ;;
*) sleep 1000 & wait ;;
esac
`)
	own := must.Get(os.Hostname())(t)
	hosts := []Host{{"up1", 1}, {"down", 2}, {own, 1}, {"silent", 3}, {"localhost", 1}, {"up2", 4}}
	live, silent := Probe(t.Context(), hosts, ShellAgent(agent), 2*time.Second)
	if want := []Host{hosts[0], hosts[2], hosts[4], hosts[5]}; !reflect.DeepEqual(live, want) {
		t.Errorf("%v answered, want %v", live, want)
	}
	if len(silent) != 2 || silent[0].Host != hosts[1] || silent[1].Host != hosts[3] {
		t.Fatalf("%v did not answer, want down and silent", silent)
	}
	for i, want := range []string{"exit status 255: ssh: connect to host down: refused", "no answer within 2s"} {
		if got := silent[i].Err.Error(); got != want {
			t.Errorf("%s: %q, want %q", silent[i].Name, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if live, silent := Probe(ctx, hosts[:1], ShellAgent(agent), time.Hour); len(live) != 0 || len(silent) != 1 {
		t.Errorf("cancelled: %v and %v, want up1 silent", live, silent)
	}
	if _, silent := Probe(t.Context(), hosts[:1], ShellAgent("/no/such/agent"), time.Hour); len(silent) != 1 ||
		!strings.Contains(silent[0].Err.Error(), "/no/such/agent") {
		t.Errorf("%v, want an error that names the agent", silent)
	}
}

func TestAgents(t *testing.T) {
	t.Setenv("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10")
	for command, want := range map[string]string{
		"":                "ssh -o BatchMode=yes -o ConnectionAttempts=10 h",
		"ssh : rsh":       "ssh -o BatchMode=yes -o ConnectionAttempts=10 h",
		"ssh -p 22":       "ssh -p 22 h",
		"/usr/bin/mine -": "/usr/bin/mine - h",
	} {
		agent := ShellAgent(command)
		agent("other") // must not show in the next
		if got := strings.Join(agent("h"), " "); got != want {
			t.Errorf("%q: %q, want %q", command, got, want)
		}
	}
	if got, want := strings.Join(SlurmAgent("h"), " "), "srun --overlap --nodes=1 --ntasks=1 "+
		"--nodelist=h"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestArgs(t *testing.T) {
	always := "--bind-to none --mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca " +
		"oob_tcp_keepalive_probes 3 --mca mpi_yield_when_idle 1"
	for _, test := range []struct {
		m     MPIRun
		hosts []Host
		want  string
	}{
		{MPIRun{CPUs: 3}, []Host{{"localhost", 3}}, "-n 3 --host localhost:3 " + always + " p train"},
		{MPIRun{CPUs: 2}, []Host{{"localhost", 3}}, "-n 3 --host localhost:3 " + always + " --oversubscribe p train"},
		{MPIRun{CPUs: 2}, []Host{{"far", 3}}, "-n 3 --host far:3 " + always + " p train"},
		{MPIRun{CPUs: 1, Interface: "10.0.0.0/24", Agent: "my agent", Env: []string{"A", "B"},
			Extra: []string{"--tag-output"}},
			[]Host{{"a", 2}, {"b", 1}}, "-n 3 --host a:2,b:1 " + always + " --mca pml ob1 --mca btl tcp,self " +
				"--mca oob_tcp_if_include 10.0.0.0/24 --mca btl_tcp_if_include 10.0.0.0/24 --mca plm rsh --mca " +
				"plm_rsh_agent my agent -x A -x B --tag-output p train"},
	} {
		if got := strings.Join(test.m.Args(test.hosts, 3, []string{"p", "train"}), " "); got != test.want {
			t.Errorf("%v:\n%s, want\n%s", test.hosts, got, test.want)
		}
	}
}
