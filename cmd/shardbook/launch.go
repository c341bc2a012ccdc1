package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/launch"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/userfile"
)

// launchOptions are the flags of launch.
type launchOptions struct {
	hostfile, list, discover string
	slots                    int
	agent, network           string
	mpirunArgs               []string
	checkpoint               string
	minHosts, restarts       int
	probe, grace             time.Duration
}

func launchCommand() *cobra.Command {
	o := launchOptions{minHosts: 1, restarts: 3, probe: 5 * time.Second, grace: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "launch --checkpoint DIR [flags] -- [flags of train]",
		Short: "Train on several hosts, and continue without those that fail",
		Long: `Run shardbook train --engine mpi under mpirun, with the flags after --, on all hosts that answer.
When a rank or a host fails, it restarts the job from the newest checkpoint in DIR, on the hosts that answer then.
The same command also continues an interrupted job. All hosts need this program at the same path, and see DIR.

Hosts come from --hostfile or --host, else from Slurm's allocation, else from the file that
` + envHostfile + ` names, else from the MPI Operator's ` + operatorHostfile + `; without these all
ranks are on this machine. Of their slots as many are used as can share the job's --batch; with --data, exactly
as many as that needs.

A host with ranks that does not answer for --grace is given up. SIGINT and SIGTERM reach the ranks as SIGUSR1:
they save and end.

The exit status is 0 when the job is done; 75 where it could be continued later, with the same command:
interrupted, too few hosts, or too many restarts; and otherwise the job's own, 1 for wrong use.`,
		Example: "  shardbook launch --hostfile hosts --interface 10.0.0.0/24 --checkpoint run -- --zero 3 --batch " +
			"12 --steps 1000\n" +
			"  shardbook launch --host a:2,b:2 --min-hosts 2 --checkpoint run -- --pipe 2 --batch 16 --log log\n" +
			"  shardbook launch --slots 4 --checkpoint run -- --data 4 --sync overlap\n" +
			"  sbatch docker/train.sbatch\n" +
			"  kubectl create -f docker/mpijob.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(cmd, args); err != nil {
				return err
			}
			err := o.run(cmd, args)
			var failed *launch.Error
			if errors.As(err, &failed) && failed.Status != 1 {
				fmt.Fprintln(cmd.ErrOrStderr(), "shardbook:", err)
				return mpijob.ExitStatus(failed.Status)
			}
			return err
		},
	}
	f := cmd.Flags()
	add := flags.Adder(f)
	add(&o.hostfile, "hostfile", "file of hosts, NAME slots=N in each line; read again before each start")
	add(&o.list, "host", "hosts, and how many ranks each takes, as a:2,b:1")
	add(&o.discover, "discover", "program that prints the hosts there are, as discover_hosts.sh")
	add(&o.slots, "slots", "ranks of this machine, where no hosts are given (default its CPUs)")
	add(&o.agent, "agent", "remote shell (default $"+envAgent+", or ssh, or srun)")
	add(&o.network, "interface", "network between hosts, as 10.0.0.0/24 or eth0 (default all common ones)")
	f.StringArrayVar(&o.mpirunArgs, "mpirun-arg", nil, "one more argument for mpirun; may be repeated")
	flags.File(f, "hostfile")
	flags.File(f, "discover")
	flags.Group(f, "hosts")
	add(&o.checkpoint, "checkpoint", "folder for checkpoints, which all hosts see")
	add(&o.minHosts, "min-hosts", "hosts without which the job is not started")
	add(&o.restarts, "restarts", "how often to start again with no new checkpoint in between")
	add(&o.probe, "probe", "time that a host has to answer before a start")
	add(&o.grace, "grace", "time for a job to end, and for a silent host, before all is killed")
	flags.Folder(f, "checkpoint")
	flags.Least(f, "1", "slots", "min-hosts")
	flags.Least(f, "0", "restarts")
	flags.Positive(f, "probe", "grace")
	flags.Group(f, job.GroupRun)
	return cmd
}

func (o *launchOptions) validate(cmd *cobra.Command, args []string) error {
	changed := cmd.Flags().Changed
	switch dash := cmd.ArgsLenAtDash(); {
	case dash > 0 || dash < 0 && len(args) > 0:
		return fmt.Errorf("%.80q is not a flag of launch: give flags of train after --", args[0])
	case changed("devices"):
		return errors.New("--devices is for a single process, while ranks open as many devices as they need: leave " +
			"it out")
	case o.checkpoint == "":
		return errors.New("a job cannot be restarted without checkpoints: give --checkpoint DIR, a folder that all " +
			"hosts see")
	case o.hostfile != "" && o.list != "":
		return errors.New("--hostfile and --host both list the hosts: leave one of them out")
	case changed("slots") && (o.hostfile != "" || o.list != "" || o.discover != ""):
		return fmt.Errorf("--slots=%d is only for this machine: give each host its slots in the list, as a:2 or "+
			"slots=2", o.slots)
	case os.Geteuid() == 0 && !asRoot():
		return errors.New("mpirun does not run as root: be another user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and " +
			"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	}
	_, err := exec.LookPath("mpirun")
	if err != nil {
		return fmt.Errorf("%w: apt-get install openmpi-bin", err)
	}
	o.checkpoint, err = filepath.Abs(o.checkpoint) // ranks may have another working folder
	return err
}

func asRoot() bool {
	return os.Getenv("OMPI_ALLOW_RUN_AS_ROOT") == "1" && os.Getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") == "1"
}

// failedRank matches lines of standard error, from ranks or from mpirun, that report a failure which ends the job.
var failedRank = regexp.MustCompile(`^(shardbook: rank \d+ on |mpirun (noticed|detected) that |` +
	`ORTE has lost communication )`)

// run supervises the job that train's flags describe.
func (o *launchOptions) run(cmd *cobra.Command, args []string) error {
	job, err := newLaunchJob(args, o.checkpoint)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	hosts, agent, err := o.hosts(cmd.Context())
	if err != nil {
		return err
	}
	mpirun := launch.MPIRun{Interface: o.network, Agent: o.agent, Env: handedOver(), Extra: o.mpirunArgs,
		CPUs: runtime.NumCPU()}
	stderr := cmd.ErrOrStderr()
	signals.allow(o.grace + usualGrace) // the first part is the supervisor's
	return launch.Supervise(cmd.Context(), launch.Config{
		Hosts: hosts,
		Probe: func(ctx context.Context, hosts []launch.Host) ([]launch.Host, []launch.Silent) {
			return launch.Probe(ctx, hosts, agent, o.probe)
		},
		Ranks:    job.ranks,
		Progress: job.progress,
		Start: func(hosts []launch.Host, ranks, from int) (launch.Process, error) {
			if from == 0 {
				moved, err := job.startOver()
				if err != nil {
					return nil, err
				}
				if moved != "" {
					say(stderr, "--log has the steps of a run that saved nothing in "+o.checkpoint+
						": they are in "+moved+" now")
				}
			}
			train, err := job.start(ranks, from)
			if err != nil {
				return nil, err
			}
			line := mpirun.Args(hosts, ranks, append([]string{self}, train...))
			p, err := launch.Start("mpirun", line, cmd.OutOrStdout(), stderr, failedRank)
			if err == nil {
				signals.before(p.Kill)
			}
			return p, err
		},
		MinHosts: o.minHosts, Restarts: o.restarts, Grace: o.grace,
		Say: func(line string) { say(stderr, line) },
	})
}

func say(out io.Writer, line string) { fmt.Fprintln(out, "launch:", line) }

// handedOver lists the environment variables that ranks on all hosts get: this project's, and those with which the
// plugin is found and compiles.
func handedOver() (names []string) {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if name == "XLA_FLAGS" || name == "PJRT_PLUGIN_LIBRARY_PATH" || strings.HasPrefix(name, "SHARDBOOK_") {
			names = append(names, name)
		}
	}
	return names
}

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
			return hosts, inFlag("discover", err)
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
			return hosts, inFlag(fmt.Sprintf("host=%.80s", o.list), err)
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
