package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// beforeCrew is an error of a process that has not joined the others yet, if there are others: with wrong use all have the same.
type beforeCrew struct{ error }

func (e beforeCrew) Unwrap() error { return e.error }

// turn is how long a process that is not the first waits before it says an error that all may have.
const turn = 3 * time.Second

// mine waits for the first process to say the error, whose end has mpirun end this one, too, and reports whether it is left to this one.
func (e beforeCrew) mine(ctx context.Context) bool {
	if started("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID") == 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(turn):
		return true
	}
}

// started is the number in the first of the variables that is set, by whatever started the process; else 0.
func started(variables ...string) int {
	for _, name := range variables {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
	}
	return 0
}

// validateEngine returns an error if the processes, however many were started, cannot be the job's ranks.
func (o *trainOptions) validateEngine() error {
	switch {
	case o.engine != engineLocal && o.engine != engineMPI:
		return fmt.Errorf("--engine=%.40s: want %s or %s", o.engine, engineLocal, engineMPI)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout=%v: want more than none, as 1m", o.timeout)
	case o.engine == engineMPI:
		return nil
	}
	if n := started("OMPI_COMM_WORLD_SIZE"); n > 1 {
		return fmt.Errorf("--engine=%s: mpirun started %d processes, each of which would train for itself: add --engine %s", o.engine, n, engineMPI)
	}
	return nil
}

// settle has a job shared by the crew's ranks. given says which flags were.
func (c *crew) settle(p *parallel, o trainOptions, given func(flag string) bool) error {
	if c == nil {
		return nil
	}
	flag, number := p.byProcess()
	of := *number // each process's part of a layout is what else was given
	if flag == "replicas" {
		*number = max(1, of)
	}
	if p.Sync == syncSPMD || p.Sync == syncAuto {
		if given("sync") {
			return fmt.Errorf("--sync=%s and --engine=%s: it is one program on the devices of one process: choose --sync, one of %q, or leave it out",
				p.Sync, engineMPI, p.rankWays())
		}
		p.Sync = "" // of a run that is resumed
	}
	p.Sync = cmp.Or(p.Sync, p.rankWay())
	if o.trace != "" {
		return fmt.Errorf("--trace and --engine=%s: processes have clocks of their own, and their spans no common time: leave one of them out", engineMPI)
	}
	n, each, what := c.Size(), p.perCopy(), "ranks"
	switch {
	case p.SeqRanks:
		what = fmt.Sprintf("groups of %d ranks that share sequences or blocks", each)
	case p.Pipe > 0:
		what = fmt.Sprintf("pipelines of --pipe=%d", each)
	}
	switch {
	case given(flag) && of*each == n:
	case given(flag):
		return fmt.Errorf("--%s=%d %s need %d processes, and there are %d: start %[4]d, or leave out --%[1]s", flag, of, what, of*each, n)
	case n%each != 0:
		return fmt.Errorf("%d processes are no whole number of %s: start a multiple of %d", n, what, each)
	default:
		*number = n / each
	}
	return nil
}
