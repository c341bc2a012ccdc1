// Package flags adds features to pflag: help in groups, choices, values from a file, several flags in one value, and
// shell completion. It stores their settings in the annotations of the flags.
package flags

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The annotations of a flag.
const (
	groupKey   = "shardbook_group"
	choicesKey = "shardbook_choices"
	needsKey   = "shardbook_needs"
	pairsKey   = "shardbook_pairs"
	originKey  = "shardbook_origin"
	notFileKey = "shardbook_not_in_files"
	filesKey   = "shardbook_settings_file"
	leastKey   = "shardbook_least"
)

// Adder returns a function that adds a flag for a variable, whose value is the default: a [pflag.Value], or a number, a
// bool, a duration or a string type. It panics if the variable is of another type.
func Adder(f *pflag.FlagSet) func(variable any, name, usage string) {
	return func(variable any, name, usage string) {
		switch v := variable.(type) {
		case pflag.Value:
			f.Var(v, name, usage)
		case *int:
			f.IntVar(v, name, *v, usage)
		case *int64:
			f.Int64Var(v, name, *v, usage)
		case *uint32:
			f.Uint32Var(v, name, *v, usage)
		case *float64:
			f.Float64Var(v, name, *v, usage)
		case *bool:
			f.BoolVar(v, name, *v, usage)
		case *time.Duration:
			f.DurationVar(v, name, *v, usage)
		default:
			text := reflect.ValueOf(v).Convert(reflect.TypeFor[*string]()).Interface().(*string)
			f.StringVar(text, name, *text, usage)
		}
	}
}

// Group puts all flags without a group into this one. Help lists them under its name.
func Group(f *pflag.FlagSet, name string) {
	f.SortFlags = false
	f.VisitAll(func(flag *pflag.Flag) {
		if group(flag) == "" {
			annotate(flag, groupKey, name)
		}
	})
}

func group(flag *pflag.Flag) string { return first(flag, groupKey) }

func first(flag *pflag.Flag, key string) string {
	if values := flag.Annotations[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func annotate(flag *pflag.Flag, key string, values ...string) {
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[key] = values
}

// NotInFiles marks flags that are only for one start of a command: files cannot set them, and [Print] leaves them out.
// It panics if a flag does not exist.
func NotInFiles(f *pflag.FlagSet, names ...string) {
	for _, name := range names {
		annotate(f.Lookup(name), notFileKey, "true")
	}
}

// Choices sets the values of a flag for completion; it does not check them. It panics if the flag does not exist.
func Choices[T ~string](f *pflag.FlagSet, name string, values ...T) {
	annotate(f.Lookup(name), choicesKey, Texts(values)...)
}

// Choice adds a flag that accepts only these values, in lower or upper case.
func Choice[T ~string](f *pflag.FlagSet, p *T, name string, values []T, usage string) {
	f.Var(&choice[T]{p, values}, name, usage)
	Choices(f, name, values...)
}

type choice[T ~string] struct {
	p      *T
	values []T
}

func (c *choice[T]) Set(text string) error {
	for _, v := range c.values {
		if strings.EqualFold(text, string(v)) {
			*c.p = v
			return nil
		}
	}
	return fmt.Errorf("want one of %s", List(c.values, ", "))
}

func (c *choice[T]) String() string { return string(*c.p) }
func (c *choice[T]) Type() string   { return "string" }

// Texts returns values as strings, and List returns them joined.
func Texts[T ~string](values []T) (texts []string) {
	for _, v := range values {
		texts = append(texts, string(v))
	}
	return texts
}

func List[T ~string](values []T, separator string) string {
	return strings.Join(Texts(values), separator)
}

// Needs declares that flags have no effect unless another one is set; see [Check]. It panics if a flag does not exist.
func Needs(f *pflag.FlagSet, other string, names ...string) {
	for _, name := range names {
		annotate(f.Lookup(name), needsKey, other)
	}
}

// Check returns an error if a flag is set but the flag that it needs is not. Empty, 0 and false are not set.
func Check(f *pflag.FlagSet) (err error) {
	unset := func(flag *pflag.Flag) bool { return slices.Contains([]string{"", "0", "false"}, flag.Value.String()) }
	f.VisitAll(func(flag *pflag.Flag) {
		if needs := first(flag, needsKey); err == nil && needs != "" && !unset(flag) && unset(f.Lookup(needs)) {
			err = fmt.Errorf("--%s=%s changes nothing without --%s: leave it out, or set --%[3]s", flag.Name,
				flag.Value, needs)
		}
	})
	return err
}

// Least sets the minimum of numbers or durations, such as "1" or "0s". It panics if a flag does not exist.
func Least(f *pflag.FlagSet, least string, names ...string) {
	for _, name := range names {
		annotate(f.Lookup(name), leastKey, least)
	}
}

// Positive marks durations that must be more than 0. It panics if a flag does not exist.
func Positive(f *pflag.FlagSet, names ...string) { Least(f, moreThan0, names...) }

const moreThan0 = "1ns"

// Settle reads the files of settings, sets the flags of [Pairs], and returns an error for a flag that was set to an
// empty value or below its minimum.
func Settle(f *pflag.FlagSet) (err error) {
	each := func(do func(flag *pflag.Flag) error) {
		f.VisitAll(func(flag *pflag.Flag) {
			if err == nil && flag.Changed {
				err = do(flag)
			}
		})
	}
	each(func(flag *pflag.Flag) error {
		if flag.Value.String() == "" && flag.Value.Type() == "string" {
			return fmt.Errorf("--%s is empty: give it a value, or leave it out", flag.Name)
		}
		return nil
	})
	each(func(flag *pflag.Flag) error {
		if flag.Annotations[pairsKey] == nil {
			return nil
		}
		return expand(f, flag)
	})
	each(func(flag *pflag.Flag) error {
		if !isSettings(flag, flag.Value.String()) {
			return nil
		}
		if err := load(f, flag.Value.String()); err != nil {
			return fmt.Errorf("--%s: %w", flag.Name, err)
		}
		return flag.Value.Set(flag.DefValue) // all that it says is set
	})
	each(func(flag *pflag.Flag) error {
		least, text := first(flag, leastKey), flag.Value.String()
		if least == "" || amount(text) >= amount(least) {
			return nil
		}
		want := "at least " + least
		if least == moreThan0 {
			want = "more than 0s"
		}
		return Located(f, fmt.Errorf("--%s=%s: want %s", flag.Name, text, want))
	})
	return err
}

// amount is the value of a number, or the nanoseconds of a duration.
func amount(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// Complete adds shell completion for the flags of a command that have choices.
func Complete(cmd *cobra.Command) {
	register := func(flag *pflag.Flag) {
		choices := flag.Annotations[choicesKey]
		if len(choices) == 0 {
			return
		}
		complete := func(_ *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
			other := func(choice string) bool { return !strings.HasPrefix(choice, begin) }
			return slices.DeleteFunc(slices.Clone(choices), other), cobra.ShellCompDirectiveNoFileComp
		}
		if err := cmd.RegisterFlagCompletionFunc(flag.Name, complete); err != nil {
			panic(err) // it is registered twice
		}
	}
	cmd.PersistentFlags().VisitAll(register)
	cmd.LocalNonPersistentFlags().VisitAll(register)
}

// Help makes a command and its subcommands list their flags by group.
func Help(root *cobra.Command) {
	cobra.AddTemplateFunc("flagGroups", usages)
	const heading, list = "\nFlags:\n", "{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), heading+list, "{{flagGroups .LocalFlags}}", 1))
}

// usages is the help of flags: a heading for each group, in the order of their first flags, and a line for each flag.
func usages(f *pflag.FlagSet) string {
	var names []string
	groups := map[string]*pflag.FlagSet{}
	f.VisitAll(func(flag *pflag.Flag) {
		name := group(flag)
		if groups[name] == nil {
			groups[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
			groups[name].SortFlags = f.SortFlags
			names = append(names, name)
		}
		groups[name].AddFlag(flag)
	})
	var out strings.Builder
	for _, name := range names {
		if groups[name].HasAvailableFlags() {
			fmt.Fprintf(&out, "\n%s:\n%s", title(name), groups[name].FlagUsages())
		}
	}
	return strings.TrimRight(out.String(), "\n")
}

func title(group string) string {
	if group == "" {
		return "Flags"
	}
	return strings.ToUpper(group[:1]) + group[1:] + " flags"
}
