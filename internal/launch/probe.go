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

// Silent is a host that did not answer, and the reason.
type Silent struct {
	Host
	Err error
}

// Agent returns the command that runs another one on a host.
type Agent func(host string) []string

// ShellAgent returns the agent for a value of Open MPI's plm_rsh_agent: a program with arguments, to which the host and
// the command are appended. Of alternatives separated by colons it uses the first. It never lets ssh ask for a
// password.
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

// SlurmAgent runs a command with srun, beside other steps of the allocation.
func SlurmAgent(host string) []string {
	return []string{"srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=" + host}
}

// Probe runs the command true on all hosts but this one concurrently. It returns those that answered within the
// deadline and those that did not, in the order of hosts.
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
		if failed[i] == nil {
			live = append(live, h)
		} else {
			silent = append(silent, Silent{h, failed[i]})
		}
	}
	return live, silent
}

// ask runs true through an agent.
func ask(ctx context.Context, agent []string, deadline time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("no answer within %v", deadline))
	defer cancel()
	_, err := output(ctx, append(agent[:len(agent):len(agent)], "true")...)
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // it succeeded, and a process that it started still runs
		return nil
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}
