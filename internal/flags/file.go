package flags

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/shardbook/shardbook/internal/userfile"
)

// anyFile marks a flag all of whose files are settings.
const anyFile = "*"

// Settings marks a flag that names a file of settings: TOML by its extension, else YAML, which includes JSON. Keys are
// the names of flags, with - or _. With only, files of other extensions are not settings. [Settle] reads the file:
// flags on the command line win, and a value equal to a flag's default does not count as given. An unknown or duplicate
// key, or an invalid value, is an error that names the file, the line (in YAML and JSON), the key and the value. It
// panics if the flag does not exist.
func Settings(f *pflag.FlagSet, name string, only ...string) {
	File(f, name, "yaml", "yml", "json", "toml")
	if only == nil {
		only = []string{anyFile}
	}
	annotate(f.Lookup(name), filesKey, only...)
}

// maxFile is the maximum size of a file of settings in bytes.
const maxFile = 1 << 20

// entry is a setting: a flag, its value, and its place in the file.
type entry struct{ name, value, where string }

// isSettings reports whether a flag's value names a file of settings.
func isSettings(flag *pflag.Flag, path string) bool {
	only := flag.Annotations[filesKey]
	return slices.Contains(only, anyFile) || slices.Contains(only, strings.TrimPrefix(filepath.Ext(path), "."))
}

// load sets flags from a file of settings.
func load(f *pflag.FlagSet, path string) error {
	text, err := userfile.Read(path, maxFile)
	if err != nil {
		return err
	}
	entries, err := read(path, text)
	if err != nil {
		return err
	}
	var all []entry
	for _, e := range entries {
		flag := f.Lookup(e.name)
		switch {
		case flag == nil || group(flag) == "" || flag.Annotations[notFileKey] != nil || isSettings(flag, e.value):
			return fmt.Errorf("%s: %q is not a setting: want the name of a flag", e.where, e.name)
		case flag.Annotations[pairsKey] == nil:
			all = append(all, entry{flag.Name, e.value, e.where})
			continue
		}
		pairs, err := split(f, flag, e.value)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", e.where, e.name, err)
		}
		for _, p := range pairs {
			all = append(all, entry{p.name, p.value, e.where})
		}
	}
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.name] {
			return fmt.Errorf("%s: %s is given twice", e.where, e.name)
		}
		seen[e.name] = true
		flag := f.Lookup(e.name)
		if flag.Changed {
			continue
		}
		if err := e.set(flag); err != nil {
			return err
		}
		if flag.Value.String() != flag.DefValue {
			f.Set(e.name, e.value)
			annotate(flag, originKey, e.where)
		}
	}
	return nil
}

// set sets the flag's value. The flag does not count as given.
func (e entry) set(flag *pflag.Flag) error {
	if err := flag.Value.Set(e.value); err != nil {
		return fmt.Errorf("%s: %s is %.60q: %s", e.where, e.name, e.value, wanted(flag, err))
	}
	return nil
}

// wanted describes the valid values of a flag.
func wanted(flag *pflag.Flag, err error) string {
	if want, ok := map[string]string{"int": "a whole number", "int64": "a whole number",
		"uint32":  "a whole number of at least 0",
		"float64": "a number", "bool": "true or false", "duration": "a duration, as 30s"}[flag.Value.Type()]; ok {
		return "want " + want
	}
	return err.Error()
}

// Located adds to an error the place in a file of the first flag that it names, if a file set that flag.
func Located(f *pflag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	for _, name := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(err.Error(), -1) {
		if flag := f.Lookup(name[2:]); flag != nil && first(flag, originKey) != "" {
			return fmt.Errorf("%s: %w", first(flag, originKey), err)
		}
	}
	return err
}

// read lists the settings of a file.
func read(path string, text []byte) ([]entry, error) {
	if filepath.Ext(path) == ".toml" {
		return readTOML(path, text)
	}
	return readYAML(path, text)
}

func readYAML(path string, text []byte) (all []entry, err error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := decoder.Decode(new(yaml.Node)); err != io.EOF {
		return nil, fmt.Errorf("%s: the file has more than one document: leave out the others", path)
	}
	if len(document.Content) == 0 { // an empty file sets nothing
		return nil, nil
	}
	mapping := document.Content[0]
	if mapping.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want a mapping, as in \"layers: 4\"", path, mapping.Line)
	}
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		where := fmt.Sprintf("%s:%d", path, key.Line)
		if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			return nil, fmt.Errorf("%s: %s has no single value: want a number, a text, true or false", where, key.Value)
		}
		all = append(all, entry{dashed(key.Value), value.Value, where})
	}
	return all, nil
}

func readTOML(path string, text []byte) (all []entry, err error) {
	values := map[string]any{}
	if _, err := toml.Decode(string(text), &values); err != nil {
		var syntax toml.ParseError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("%s:%d: %s", path, syntax.Position.Line, syntax.Message)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch value := values[key].(type) {
		case string, bool, int64, float64:
			all = append(all, entry{dashed(key), fmt.Sprint(value), path})
		default:
			return nil, fmt.Errorf("%s: %s has no single value: want a number, a text, true or false", path, key)
		}
	}
	return all, nil
}

func dashed(key string) string { return strings.ReplaceAll(key, "_", "-") }

// Pairs adds a flag that sets several others, those of these groups, as in "pipe=2,data=2". [Settle] sets them. It is
// an error if one of them is also given by its own flag.
func Pairs(f *pflag.FlagSet, name, usage string, groups ...string) {
	f.String(name, "", usage)
	annotate(f.Lookup(name), pairsKey, groups...)
}

func expand(f *pflag.FlagSet, of *pflag.Flag) error {
	pairs, err := split(f, of, of.Value.String())
	if err != nil {
		return fmt.Errorf("--%s: %w", of.Name, err)
	}
	for _, p := range pairs {
		flag := f.Lookup(p.name)
		if flag.Changed {
			return fmt.Errorf("--%s has %s=%s, and --%[2]s is given as well: leave one of them out", of.Name, p.name,
				p.value)
		}
		p.where = "--" + of.Name
		if err := p.set(flag); err != nil {
			return err
		}
		f.Set(p.name, p.value)
	}
	return nil
}

// split lists the pairs of a value. Colons stand for commas within a value, and a key without a value is true.
func split(f *pflag.FlagSet, of *pflag.Flag, text string) (all []entry, err error) {
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		flag := f.Lookup(key)
		if flag == nil || flag == of || !slices.Contains(of.Annotations[pairsKey], group(flag)) {
			return nil, fmt.Errorf("%.40q is an unknown key: want one of %s", key, strings.Join(keys(f, of), ", "))
		}
		if !ok && flag.Value.Type() == "bool" {
			value = "true"
		}
		if seen[key] {
			return nil, fmt.Errorf("%s is given twice", key)
		}
		seen[key] = true
		all = append(all, entry{name: flag.Name, value: strings.ReplaceAll(value, ":", ",")})
	}
	return all, nil
}

// keys returns the names that a flag of [Pairs] accepts.
func keys(f *pflag.FlagSet, of *pflag.Flag) (names []string) {
	f.VisitAll(func(flag *pflag.Flag) {
		if flag != of && !flag.Hidden && slices.Contains(of.Annotations[pairsKey], group(flag)) {
			names = append(names, flag.Name)
		}
	})
	return names
}

// settings are the flags that files can set, and that have a value.
func settings(f *pflag.FlagSet) (all []*pflag.Flag) {
	f.VisitAll(func(flag *pflag.Flag) {
		text := flag.Value.String()
		if text != "" && group(flag) != "" && !flag.Hidden && flag.Annotations[notFileKey] == nil &&
			flag.Annotations[pairsKey] == nil && !isSettings(flag, text) {
			all = append(all, flag)
		}
	})
	return all
}

// Print writes the settings as a YAML file: the flags of all groups that have a value, under the names of their groups.
func Print(out io.Writer, f *pflag.FlagSet) error {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	last := ""
	for _, flag := range settings(f) {
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: flag.Name}
		value := &yaml.Node{Kind: yaml.ScalarNode, Value: flag.Value.String()}
		if kind := flag.Value.Type(); kind == "string" || kind == "duration" {
			value.Tag = "!!str"
		}
		if group(flag) != last {
			last = group(flag)
			key.HeadComment = last
		}
		mapping.Content = append(mapping.Content, key, value)
	}
	encoder := yaml.NewEncoder(out)
	defer encoder.Close()
	return encoder.Encode(mapping)
}

// Values returns the settings for a file of JSON, except those of some groups. Their types are text, number and bool.
func Values(f *pflag.FlagSet, except ...string) map[string]any {
	values := map[string]any{}
	for _, flag := range settings(f) {
		if slices.Contains(except, group(flag)) {
			continue
		}
		var value any = flag.Value.String()
		if flag.Value.Type() != "string" {
			value = json.RawMessage(flag.Value.String())
		}
		values[strings.ReplaceAll(flag.Name, "-", "_")] = value
	}
	return values
}

// File marks a flag that names a file, for completion: with one of these extensions, or any if there are none.
func File(f *pflag.FlagSet, name string, extensions ...string) {
	if err := cobra.MarkFlagFilename(f, name, extensions...); err != nil {
		panic(err) // there is no such flag
	}
}

// Folder marks a flag that names a folder, for completion.
func Folder(f *pflag.FlagSet, name string) {
	if err := cobra.MarkFlagDirname(f, name); err != nil {
		panic(err) // there is no such flag
	}
}
