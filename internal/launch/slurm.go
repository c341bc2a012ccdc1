package launch

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// InSlurm reports whether this process runs in a Slurm allocation.
func InSlurm() bool { return os.Getenv("SLURM_JOB_NODELIST") != "" }

// Slurm returns the hosts of this process's allocation: the nodes of SLURM_JOB_NODELIST, expanded by scontrol, with the
// tasks of SLURM_TASKS_PER_NODE as slots.
func Slurm(ctx context.Context) ([]Host, error) {
	nodes := os.Getenv("SLURM_JOB_NODELIST")
	if nodes == "" {
		return nil, fmt.Errorf("SLURM_JOB_NODELIST is not set: run inside a Slurm allocation (sbatch, salloc)")
	}
	text, err := output(ctx, "scontrol", "show", "hostnames", nodes)
	if err != nil {
		return nil, fmt.Errorf("SLURM_JOB_NODELIST=%s: scontrol: %w", nodes, err)
	}
	names := strings.Fields(text)
	tasks, err := slurmTasks(os.Getenv("SLURM_TASKS_PER_NODE"), len(names))
	if err != nil {
		return nil, err
	}
	var hosts hostList
	for i, name := range names {
		if err := hosts.add(name, tasks[i]); err != nil {
			return nil, fmt.Errorf("SLURM_JOB_NODELIST=%s: %w", nodes, err)
		}
	}
	return hosts, nil
}

// slurmRun matches an item of SLURM_TASKS_PER_NODE.
var slurmRun = regexp.MustCompile(`^(\d+)(?:\(x(\d+)\))?$`)

// slurmTasks expands SLURM_TASKS_PER_NODE, such as 2(x3),1, for a number of nodes.
func slurmTasks(text string, nodes int) (tasks []string, err error) {
	for _, item := range strings.Split(text, ",") {
		run := slurmRun.FindStringSubmatch(item)
		times := 1
		if run != nil && run[2] != "" {
			times, err = strconv.Atoi(run[2])
		}
		if run == nil || err != nil || times < 1 || times > nodes-len(tasks) {
			return nil, fmt.Errorf("SLURM_TASKS_PER_NODE=%.80s does not suit the %d nodes of SLURM_JOB_NODELIST: "+
				"want such as 2(x3),1", text, nodes)
		}
		for range times {
			tasks = append(tasks, run[1])
		}
	}
	if len(tasks) != nodes {
		return nil, fmt.Errorf("SLURM_TASKS_PER_NODE=%.80s is for %d nodes, and SLURM_JOB_NODELIST has %d", text,
			len(tasks), nodes)
	}
	return tasks, nil
}
