package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/xla"
)

// trait is something that all processes of a run have in common, and what it is in this one.
type trait struct{ What, Is string }

// traits are those of a job that is ready to begin, after a checkpoint or, where that is nil, from the beginning.
func (t *training) traits(from *checkpoint.Checkpoint) ([]trait, error) {
	program, err := ownSHA()
	if err != nil {
		return nil, err
	}
	all := []trait{{"a program of SHA-256", program}, {"a plugin", pluginTrait(t.backend.Info())}}
	j := *t.job
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	jobFlags(flags, &j)
	j.Parallel.flags(flags)
	flags.VisitAll(func(f *pflag.Flag) { all = append(all, trait{"--" + f.Name, f.Value.String()}) })
	o, step := t.options, "a new run"
	if from != nil {
		step = fmt.Sprintf("step %d", from.Step)
	}
	return append(all,
		trait{"--text with the SHA-256", j.TextSHA}, trait{"--schedule-file with", j.Parallel.ScheduleText},
		trait{"--save-every", fmt.Sprint(o.saveEvery)}, trait{"--sample", fmt.Sprint(o.sample)}, trait{"--link", o.link.String()},
		trait{"--timeout", o.timeout.String()}, trait{"--checkpoint to save to", fmt.Sprint(o.checkpoint != "")},
		trait{"--checkpoint with", step}), nil
}

// pluginTrait says what the plugin is, wherever it lies.
func pluginTrait(i xla.Info) string {
	return fmt.Sprintf("%s for %s, API %s", filepath.Base(i.Plugin), i.Platform, i.API)
}

// ownSHA is the hash of this program.
func ownSHA() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// same returns an error if processes have not all of what they are to have in common: the same on all, of the first thing that differs.
func (c *crew) same(own []trait) error {
	all, err := shared(c, own)
	if err != nil {
		return err
	}
	for i, want := range all[0] {
		for rank, traits := range all {
			if traits[i] != want {
				return fmt.Errorf("%s has %s, %s has %s: start the same program with the same flags and files on all hosts",
					c.at(rank), traits[i], c.at(0), want)
			}
		}
	}
	return nil
}

// String is the trait in an error.
func (t trait) String() string {
	is := t.Is
	if is == "" {
		is = "none"
	}
	if len(is) > 80 {
		is = fmt.Sprintf("%.32s… (%d bytes, SHA-256 %.16x)", is, len(is), sha256.Sum256([]byte(is)))
	}
	return t.What + " " + strings.ReplaceAll(is, "\n", " ")
}

// seesFolder returns an error if the process does not see the folder that rank 0 saves to. It is a collective call.
func (c *crew) seesFolder(folder string) (err error) {
	name := ""
	if c.first() {
		file, err := os.CreateTemp(folder, ".seen-by-all-")
		if err != nil {
			return fmt.Errorf("--checkpoint: %w", err)
		}
		defer os.Remove(file.Name())
		if err := file.Close(); err != nil {
			return fmt.Errorf("--checkpoint: %w", err)
		}
		name = filepath.Base(file.Name())
	}
	names, err := c.tell(c.ctx, name)
	if err != nil {
		return err
	}
	problem := ""
	if _, err := os.Stat(filepath.Join(folder, names[0])); err != nil {
		problem = fmt.Sprintf("--checkpoint: %s is not the folder of %s (%v): give a folder that all hosts share", folder, c.at(0), err)
	}
	problems, err := c.tell(c.ctx, problem) // also, so that the file is there until all have looked
	if err != nil {
		return err
	}
	for rank, p := range problems {
		if p != "" {
			return fmt.Errorf("%s: %s", c.at(rank), p)
		}
	}
	return nil
}

// ready compares the processes before anything is compiled.
func (t *training) ready(from *checkpoint.Checkpoint) error {
	if t.crew == nil {
		return nil
	}
	own, err := t.traits(from)
	if err != nil {
		return err
	}
	if err := t.crew.same(own); err != nil || t.options.checkpoint == "" {
		return err
	}
	return t.crew.seesFolder(t.options.checkpoint)
}
