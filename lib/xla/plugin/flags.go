package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ynnFusion chooses which operations XLA:CPU hands to YNNPACK in one fusion. Some
// of those fusions read memory that nobody wrote (openxla/xla#48378, jax#39103)
// and return garbage without an error, so the list is emptied.
const ynnFusion = "xla_cpu_experimental_ynn_fusion_type"

// ynnFlag is the flag as it stands in $XLA_FLAGS when we set it.
const ynnFlag = "--" + ynnFusion + "="

// setByUs is true while ynnFlag in $XLA_FLAGS is ours. The mutex loading guards it.
var setByUs bool

// setFlags makes $XLA_FLAGS right for the plugin, unless the user chose the fusions
// there. It must run before the plugin is loaded: XLA reads the variable once. A
// plugin ends the process at a flag that it does not know, so the flag is there
// only for a library that holds its name.
func setFlags(p Plugin) error {
	flags := os.Getenv("XLA_FLAGS")
	if setByUs {
		flags = strings.TrimSpace(strings.Replace(flags, ynnFlag, "", 1))
	} else if strings.Contains(flags, ynnFusion) {
		return nil
	}
	known := p.knowsFlag // searching 200 MB takes longer than opening a backend
	if !known {
		var err error
		if known, err = contains(p.Path, ynnFusion); err != nil {
			return fmt.Errorf("plugin %q: %w", p.Path, err)
		}
	}
	if known {
		flags = strings.TrimSpace(flags + " " + ynnFlag)
	}
	setByUs = known
	return os.Setenv("XLA_FLAGS", flags)
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
