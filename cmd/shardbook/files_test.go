package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// command runs the command in this process, and returns its error. It must not be one that opens devices.
func command(args ...string) error {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	return cmd.Execute()
}

// A flag that names a file refuses what is none, or too large, with one sentence, and does not wait. Package userfile
// has more kinds of special files.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, sparse, folder := filepath.Join(dir, "pipe"), filepath.Join(dir, "sparse"), filepath.Join(dir, "folder")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o644), os.Mkdir(folder, 0o755), os.WriteFile(sparse, nil, 0o644),
		os.Truncate(sparse, 100e9)); err != nil {
		t.Fatal(err)
	}
	train := strings.Join(small, " ") + " --data 2 "
	const special, full, none = "give a regular file", "100000000000 bytes", "not a directory"
	for line, want := range map[string][]string{ // for a folder, a pipe, a large file and a device; "" is no error
		train + "--text":          {"is empty", special, full, special},
		train + "--schedule-file": {special, special, full, special},
		train + "--trace":         {special, special, full, special},
		train + "--checkpoint":    {"", none, none, none},
		"estimate --file":         {special, special, full, special},
		"estimate --config":       {special, special, full, special},
		"schedule --read":         {special, special, full, special},
		"schedule --csv":          {special, special, full, special},
		"schedule --trace":        {special, special, full, special},
		"schedule --chart":        {special, special, full, special},
		"log":                     {special, "nobody reads", "the file is not empty", ""},
		"hostfile":                {special, special, full, special},
	} {
		for i, path := range []string{folder, pipe, sparse, "/dev/zero"} {
			if want[i] == "" {
				continue
			}
			var err error
			switch line {
			case "log":
				_, err = openLog(path, 0)
			case "hostfile":
				_, err = readHostfile("--hostfile", path)
			default:
				err = command(append(strings.Fields(line), path)...)
			}
			if err == nil || !strings.Contains(err.Error(), want[i]) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %s: error %v, want one sentence with %q", line, path, err, want[i])
			}
		}
	}
	if info, err := os.Stat(sparse); err != nil || info.Size() != 100e9 {
		t.Errorf("a file that was refused was changed: %v", err)
	}
}

// What cannot be written is an error, and no run without its results.
func TestFullDevice(t *testing.T) {
	log, err := openLog("/dev/full", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	printed := func(line ...string) error {
		cmd := newCommand()
		cmd.SetArgs(line)
		cmd.SetOut(full)
		return cmd.Execute()
	}
	sizes := []string{"estimate", "--layers", "1", "--d", "8", "--heads", "1", "--vocab", "9", "--seq", "8"}
	for name, err := range map[string]error{
		"train --log":            writeLog(log, stepRecord{Step: 1}),
		"estimate":               printed(sizes...),
		"estimate --json":        printed(append(slices.Clone(sizes), "--json")...),
		"estimate --list-models": printed("estimate", "--list-models"),
		"schedule":               printed("schedule"),
		"schedule --json":        printed("schedule", "--json"),
		"schedule --csv -":       printed("schedule", "--csv", "-"),
	} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	p := begin(t, func(cmd *exec.Cmd) { cmd.Stdout = full }, slices.Concat([]string{os.Args[0]}, small,
		[]string{"--steps", "1"})...)
	if status := p.status(); status != 1 || !strings.Contains(p.output(), "no space left on device") {
		t.Errorf("train: status %d, %s", status, p.output())
	}
}
