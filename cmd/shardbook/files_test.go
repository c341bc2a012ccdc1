package main

import (
	"cmp"
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

// A flag that names a file refuses what is none with one sentence, and does not wait.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, sparse, folder := filepath.Join(dir, "pipe"), filepath.Join(dir, "sparse"), filepath.Join(dir, "folder")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o644), os.Mkdir(folder, 0o755), os.WriteFile(sparse, nil, 0o644),
		os.Truncate(sparse, 100e9)); err != nil {
		t.Fatal(err)
	}
	flag := func(line ...string) func(string) error {
		return func(path string) error { return command(append(slices.Clone(line), path)...) }
	}
	train := func(name string) func(string) error { return flag(append(slices.Clone(small), "--data", "2", name)...) }
	const special, full = "give a regular file", "100000000000 bytes"
	for name, c := range map[string]struct {
		use              func(path string) error
		inFolder, inPipe string // what the error says, where it is not that the file is no regular one
		device, inSparse string
	}{
		"train --text":          {use: train("--text"), inFolder: "is empty"},
		"train --schedule-file": {use: train("--schedule-file")},
		"train --trace":         {use: train("--trace")},
		"train --log": {use: func(path string) error {
			_, err := openLog(path, 0)
			return err
		}, inPipe: "nobody reads", device: "taken", inSparse: "the file is not empty"},
		"train --checkpoint": {use: train("--checkpoint"), inFolder: "taken", inPipe: "not a directory",
			device:   "not a directory",
			inSparse: "not a directory"},
		"estimate --file":   {use: flag("estimate", "--file")},
		"estimate --config": {use: flag("estimate", "--config")},
		"schedule --read":   {use: flag("schedule", "--read")},
		"schedule --csv":    {use: flag("schedule", "--csv")},
		"schedule --trace":  {use: flag("schedule", "--trace")},
		"schedule --chart":  {use: flag("schedule", "--chart")},
		"launch --hostfile": {use: func(path string) error {
			_, err := readHostfile("--hostfile", path)
			return err
		}},
	} {
		for path, want := range map[string]string{
			folder: cmp.Or(c.inFolder, special), pipe: cmp.Or(c.inPipe, special), sparse: cmp.Or(c.inSparse, full),
			"/dev/zero": cmp.Or(c.device, special), "/dev/full": cmp.Or(c.device, special),
		} {
			if want == "taken" {
				continue
			}
			err := c.use(path)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %s: error %v, want one sentence with %q", name, path, err, want)
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
	defer log.close()
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
		"train --log":            log.write(stepRecord{Step: 1}),
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
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(slices.Clone(small), "--steps", "1")...)
	cmd.Env = append(os.Environ(), envMain+"=1")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = full, &said
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "no space left on device") {
		t.Errorf("train: error %v, %s", err, said.String())
	}
}
