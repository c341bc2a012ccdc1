package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/launch"
)

const (
	operatorHostfile = "/etc/mpi/hostfile" // of Kubeflow's MPI Operator
	envHostfile      = "OMPI_MCA_orte_default_hostfile"
	envAgent         = "OMPI_MCA_plm_rsh_agent"
)

// hostsFunc lists the available hosts.
type hostsFunc = func(ctx context.Context) ([]launch.Host, error)

// hosts returns a function that lists the hosts, and an agent that runs commands on them. It returns an error if the
// list is invalid now.
func (o *launchOptions) hosts(ctx context.Context) (hostsFunc, launch.Agent, error) {
	known, inSlurm := o.known()
	if _, err := known(ctx); err != nil {
		return nil, nil, err
	}
	all := known
	if o.discover != "" {
		all = func(ctx context.Context) ([]launch.Host, error) {
			before, err := known(ctx)
			if err != nil {
				return nil, err
			}
			hosts, err := launch.Discover(ctx, o.discover, before)
			if err != nil {
				return nil, fmt.Errorf("--discover: %w", err)
			}
			return hosts, nil
		}
	}
	agent := cmp.Or(o.agent, os.Getenv(envAgent))
	if agent == "" && inSlurm {
		return all, launch.SlurmAgent, nil
	}
	return all, launch.ShellAgent(agent), nil
}

// known returns a function that lists the hosts of the flags or of the environment, and whether they are from Slurm.
func (o *launchOptions) known() (list hostsFunc, inSlurm bool) {
	file := func(flag, path string) hostsFunc {
		return func(context.Context) ([]launch.Host, error) { return readHostfile(flag, path) }
	}
	_, noOperator := os.Stat(operatorHostfile)
	switch {
	case o.hostfile != "":
		return file("--hostfile", o.hostfile), false
	case o.list != "":
		return func(context.Context) ([]launch.Host, error) {
			hosts, err := launch.ParseHosts(o.list)
			if err != nil {
				return nil, fmt.Errorf("--host=%.80s: %w", o.list, err)
			}
			return hosts, nil
		}, false
	case o.slots > 0:
	case launch.InSlurm():
		return launch.Slurm, true
	case os.Getenv(envHostfile) != "":
		return file(envHostfile, os.Getenv(envHostfile)), false
	case noOperator == nil:
		return file("hosts", operatorHostfile), false
	}
	here := []launch.Host{{Name: "localhost", Slots: cmp.Or(o.slots, runtime.NumCPU())}}
	return func(context.Context) ([]launch.Host, error) { return here, nil }, false
}

// maxHostfile is the maximum size of a hostfile in bytes.
const maxHostfile = 16 << 20

func readHostfile(flag, path string) ([]launch.Host, error) {
	f, err := userfile.Open(path, maxHostfile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	hosts, err := launch.ParseHostfile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", flag, path, err)
	}
	return hosts, nil
}
