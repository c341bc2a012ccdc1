package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// understood checks a command line of launch, on hosts with the given slots, up to the point where it would look for
// hosts.
func understood(t *testing.T, line []string, slots int) {
	t.Helper()
	root := newCommand()
	launch, args, err := root.Find(line)
	if err == nil {
		err = launch.ParseFlags(args)
	}
	if err != nil || launch.Name() != "launch" || launch.ArgsLenAtDash() != 0 {
		t.Fatalf("%q: %v", line, err)
	}
	job, err := newLaunchJob(launch.Flags().Args(), filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if n, err := job.ranks(slots); n != slots || err != nil {
		t.Errorf("%q: %d ranks of %d slots, %v", line, n, slots, err)
	}
}

// The command lines in docker/ are such as this program takes, and use all ranks that they ask for.
func TestLaunchManifests(t *testing.T) {
	text, err := os.ReadFile("../../docker/mpijob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "- shardbook\n")
	rest, _, ok := strings.Cut(rest, "resources:")
	var line []string
	for _, item := range regexp.MustCompile(`(?m)^ +- (\S+)$`).FindAllStringSubmatch(rest, -1) {
		line = append(line, item[1])
	}
	if !ok || !slices.Contains(line, "--") {
		t.Fatalf("the launcher's command line is %q", line)
	}
	understood(t, line, 8)

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shardbook"), []byte("#!/bin/sh\nfor word; do echo \"$word\"; done\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), "bash", "../../docker/train.sbatch", "--zero", "3", "--batch", "24")
	script.Env = append(os.Environ(), "CHECKPOINT=run", "PATH="+dir+":"+os.Getenv("PATH"))
	output, err := script.Output()
	if err != nil {
		t.Fatal(err)
	}
	understood(t, strings.Split(strings.TrimSpace(string(output)), "\n"), 8)
}
