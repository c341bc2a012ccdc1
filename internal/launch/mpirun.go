package launch

import (
	"slices"
	"strconv"
)

// MPIRun has the settings of mpirun.
type MPIRun struct {
	// Interface is the network for ranks and daemons: a name, such as eth0, or a CIDR; "" means any.
	Interface string
	// Agent is plm_rsh_agent, the program that starts daemons; "" means Open MPI's default.
	Agent string
	// Env are the names of environment variables that ranks get.
	Env []string
	// Extra are further arguments. They come last, so they override the others.
	Extra []string
	// CPUs is the number of CPUs of this machine.
	CPUs int
}

// Args returns mpirun's arguments that run a command as a number of ranks on the hosts.
func (m MPIRun) Args(hosts []Host, ranks int, command []string) []string {
	// Otherwise all threads of a rank share one core.
	args := []string{"-n", strconv.Itoa(ranks), "--host", list(hosts), "--bind-to", "none"}
	set := func(name, value string) { args = append(args, "--mca", name, value) }
	// Detect a disconnected daemon after 3 s of silence and 3 probes, 1 s apart. Otherwise mpirun hangs.
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
		set("plm", "rsh") // also under Slurm, whose launcher would be preferred
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
