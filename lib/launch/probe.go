package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Silent is a host that did not answer, and why.
type Silent struct {
	Host
	Err error
}

// Agent is how a command is run on another host.
type Agent func(host string) []string

// ShellAgent takes what Open MPI takes as plm_rsh_agent: a program with arguments, which is given the host and the
// command. Behind colons, Open MPI has alternatives, of which this is the first. For ssh, it never asks for a password.
func ShellAgent(command string) Agent {
	first, _, _ := strings.Cut(command, " : ")
	words := strings.Fields(first)
	if len(words) == 0 {
		words = []string{"ssh"}
	}
	if len(words) == 1 && words[0] == "ssh" {
		words = append(words, "-o", "BatchMode=yes")
		words = append(words, strings.Fields(os.Getenv("OMPI_MCA_plm_rsh_args"))...)
	}
	return func(host string) []string { return append(words[:len(words):len(words)], host) }
}

// SlurmAgent is srun beside other steps of the allocation.
func SlurmAgent(host string) []string {
	return []string{"srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=" + host}
}

// Probe runs true on all hosts but this one at once, and returns, in the order of hosts, those that answered within the
// deadline and those that did not.
func Probe(ctx context.Context, hosts []Host, agent Agent, deadline time.Duration) (live []Host, silent []Silent) {
	failed := make([]error, len(hosts))
	var all sync.WaitGroup
	for i, h := range hosts {
		if !h.Local() {
			all.Go(func() { failed[i] = ask(ctx, agent(h.Name), deadline) })
		}
	}
	all.Wait()
	for i, h := range hosts {
		if failed[i] != nil {
			silent = append(silent, Silent{h, failed[i]})
			continue
		}
		live = append(live, h)
	}
	return live, silent
}

// ask runs true by an agent's command.
func ask(ctx context.Context, agent []string, deadline time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("no answer within %v", deadline))
	defer cancel()
	cmd := ownGroup(exec.CommandContext(ctx, agent[0], append(agent[1:len(agent):len(agent)], "true")...))
	var said tail
	cmd.Stderr = &said
	err := cmd.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay): // it ended well, and something that it started goes on
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return said.explain(err)
}
