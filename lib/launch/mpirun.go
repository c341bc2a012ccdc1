package launch

import (
	"slices"
	"strconv"
)

// MPIRun is how mpirun is called.
type MPIRun struct {
	// Interface is the network that ranks and daemons talk over: a name, such as eth0, or a CIDR; "" is any.
	Interface string
	// Agent is plm_rsh_agent, by which daemons are started; "" leaves it to Open MPI.
	Agent string
	// Env are the names of environment variables that ranks get.
	Env []string
	// Extra are further arguments, which come last and so win.
	Extra []string
	// CPUs is how many this machine has.
	CPUs int
}

// Args returns mpirun's arguments for a number of ranks of a command on the hosts.
func (m MPIRun) Args(hosts []Host, ranks int, command []string) []string {
	// else a rank's threads share one core
	args := []string{"-n", strconv.Itoa(ranks), "--host", list(hosts), "--bind-to", "none"}
	set := func(name, value string) { args = append(args, "--mca", name, value) }
	// A daemon that is cut off is noticed within 3 s of silence and 3 questions, 1 s apart. Otherwise mpirun hangs.
	set("oob_tcp_keepalive_time", "3")
	set("oob_tcp_keepalive_intvl", "1")
	set("oob_tcp_keepalive_probes", "3")
	set("mpi_yield_when_idle", "1")
	if len(hosts) > 1 {
		set("pml", "ob1")
		set("btl", "tcp,self")
	}
	if m.Interface != "" {
		set("oob_tcp_if_include", m.Interface)
		if len(hosts) > 1 {
			set("btl_tcp_if_include", m.Interface)
		}
	}
	if m.Agent != "" {
		set("plm", "rsh") // also where there is Slurm, whose own way would come first
		set("plm_rsh_agent", m.Agent)
	}
	if len(hosts) == 1 && hosts[0].Local() && hosts[0].Slots > m.CPUs {
		args = append(args, "--oversubscribe")
	}
	for _, name := range m.Env {
		args = append(args, "-x", name)
	}
	return slices.Concat(args, m.Extra, command)
}
