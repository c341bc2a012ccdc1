package native

import (
	"regexp"
	"strings"
)

// NCU returns the command line that profiles a CUDA kernel of a program with NVIDIA's Nsight Compute; an empty name
// means all kernels. It collects the section set "full", which measures each launch several times, and the source, and
// writes REPORT.ncu-rep for ncu-ui. (The options are from NVIDIA's "Nsight Compute CLI"; the command is not tested.)
func NCU(kernel, report string, program ...string) string {
	words := []string{"ncu", "--set", "full", "--import-source", "yes", "--target-processes", "all",
		"--force-overwrite", "--export", report}
	if kernel != "" {
		words = append(words, "--kernel-name", kernel)
	}
	return commandLine(append(words, program...))
}

// Perf returns the command line that profiles a C function of a program with Linux's perf, instruction by instruction.
// It writes the samples to the file report and shows them beside the machine code.
func Perf(function, report string, program ...string) string {
	record := append([]string{"perf", "record", "--output", report, "--"}, program...)
	show := []string{"perf", "annotate", "--stdio", "--input", report, "--symbol", function}
	return commandLine(record) + " && " + commandLine(show)
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine quotes words for a POSIX shell.
func commandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if !plain.MatchString(w) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
