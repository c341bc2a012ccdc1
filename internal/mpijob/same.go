package mpijob

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Trait is a property that all processes of a run must share, and its value in this one.
type Trait struct{ What, Is string }

// pluginText says what the plugin is, wherever it lies.
func pluginText(i xla.Info) string {
	return fmt.Sprintf("%s for %s, API %s", filepath.Base(i.Plugin), i.Platform, i.API)
}

// ownSHA is the hash of this program.
func ownSHA() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(program)), err
}

// Same returns an error if processes differ in their program, their plugin or the given traits. All processes return
// the same error, about the first difference.
func (c *Job) Same(plugin xla.Info, own []Trait) error {
	program, err := ownSHA()
	if err != nil {
		return err
	}
	own = append([]Trait{{"a program of SHA-256", program}, {"a plugin", pluginText(plugin)}}, own...)
	all, err := Exchange(c, own)
	if err != nil {
		return err
	}
	for i, want := range all[0] {
		for rank, traits := range all {
			if traits[i] != want {
				return fmt.Errorf("%s has %s, %s has %s: start the same program with the same flags and files on all "+
					"hosts", c.at(rank), traits[i], c.at(0), want)
			}
		}
	}
	return nil
}

// String returns the trait's value for an error.
func (t Trait) String() string {
	is := t.Is
	if is == "" {
		is = "none"
	}
	if len(is) > 80 {
		is = fmt.Sprintf("%.32s… (%d bytes, SHA-256 %.16x)", is, len(is), sha256.Sum256([]byte(is)))
	}
	return t.What + " " + strings.ReplaceAll(is, "\n", " ")
}

// SeesFolder returns an error if the process does not see the folder that rank 0 saves to. It is a collective call.
func (c *Job) SeesFolder(folder string) (err error) {
	name := ""
	if c.First() {
		file, err := os.CreateTemp(folder, ".seen-by-all-")
		if err != nil {
			return fmt.Errorf("--checkpoint: %w", err)
		}
		defer os.Remove(file.Name())
		file.Close()
		name = filepath.Base(file.Name())
	}
	names, err := Exchange(c, name)
	if err != nil {
		return err
	}
	problem := ""
	if _, err := os.Stat(filepath.Join(folder, names[0])); err != nil {
		problem = fmt.Sprintf("--checkpoint: %s is not the folder of %s (%v): give a folder that all hosts share",
			folder, c.at(0), err)
	}
	problems, err := Exchange(c, problem) // also, so that the file is there until all have looked
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

// Gather gives all processes the parameters of the full tree, of which each has some. It is a collective call.
func (c *Job) Gather(tree params.Tree, own params.Named[*tensors.Tensor]) error {
	if c == nil {
		return nil
	}
	var names []string
	for _, s := range tree {
		if own[s.Name] != nil {
			names = append(names, s.Name)
		}
	}
	all, err := Exchange(c, names)
	if err != nil {
		return err
	}
	for _, s := range tree {
		has := func(names []string) bool { return slices.Contains(names, s.Name) }
		lacks := func(names []string) bool { return !has(names) }
		from := slices.IndexFunc(all, has)
		if from < 0 || !slices.ContainsFunc(all, lacks) {
			continue
		}
		if own[s.Name] == nil {
			own[s.Name] = tensors.FromShape(s.Shape)
		}
		e := own[s.Name].MutableBytes(func(data []byte) { err = group.Broadcast(c.ctx, c.Talk, data, from) })
		if err := errors.Join(err, e); err != nil {
			return err
		}
	}
	return nil
}

// Most returns the maximum over all processes for each kind. It is a collective call.
func (c *Job) Most(own map[string]int64) (map[string]int64, error) {
	all, err := Exchange(c, own)
	if err != nil {
		return nil, err
	}
	most := map[string]int64{}
	for _, kinds := range all {
		for kind, n := range kinds {
			most[kind] = max(most[kind], n)
		}
	}
	return most, nil
}
