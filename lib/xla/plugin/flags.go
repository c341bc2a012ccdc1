package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// flag is one of XLA's that we set.
type flag struct{ name, value string }

func (f flag) String() string { return "--" + f.name + "=" + f.value }

// flags are set for XLA on CPUs, before it is loaded.
var flags = []flag{
	// Which operations XLA hands to YNNPACK in one fusion. Some of those fusions read memory that nobody wrote
	// (openxla/xla#48378, jax#39103) and return garbage without an error, so the list is emptied.
	{"xla_cpu_experimental_ynn_fusion_type", ""},
	// Where a program rounds to half precision, it is rounded. XLA would leave out a conversion to a half type and
	// back, and a CPU would then show none of the overflow, underflow and rounding that half precision has.
	{"xla_allow_excess_precision", "false"},
}

// setByUs are the flags in $XLA_FLAGS that are ours. The mutex loading guards it.
var setByUs []flag

// setFlags makes $XLA_FLAGS right for the plugin; a flag that the user has set there is left alone. It must run before
// the plugin is loaded: XLA reads the variable once. A plugin ends the process at a flag that it does not know, so a
// flag is there only for a library that holds its name.
func setFlags(p Plugin) error {
	words := strings.Fields(os.Getenv("XLA_FLAGS"))
	words = slices.DeleteFunc(words, func(w string) bool {
		return slices.ContainsFunc(setByUs, func(f flag) bool { return f.String() == w })
	})
	setByUs = nil
	if p.Platform == CPU {
		for _, f := range flags {
			if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--"+f.name) }) {
				continue
			}
			known := p.knowsFlags // searching 200 MB takes longer than opening a backend
			if !known {
				var err error
				if known, err = contains(p.Path, f.name); err != nil {
					return fmt.Errorf("plugin %q: %w", p.Path, err)
				}
			}
			if known {
				setByUs = append(setByUs, f)
			}
		}
	}
	for _, f := range setByUs {
		words = append(words, f.String())
	}
	return os.Setenv("XLA_FLAGS", strings.Join(words, " "))
}

// contains reports whether the file holds the text.
func contains(path, text string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	// Blocks overlap by the text's length, so that one cut in two is found.
	block := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := io.ReadFull(file, block[kept:])
		if bytes.Contains(block[:kept+n], []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		kept = copy(block, block[len(block)-len(text):])
	}
}
