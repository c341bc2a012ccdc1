package native

import (
	"regexp"
	"strings"
)

// NCU returns the command line with which NVIDIA's Nsight Compute looks into a CUDA kernel of that name, or into all if
// it is empty, while a program runs: the section set "full", which measures each launch several times, and the source.
// It writes REPORT.ncu-rep, which ncu-ui opens. (The options are from NVIDIA's "Nsight Compute CLI"; none of it has
// been run here.)
func NCU(kernel, report string, program ...string) string {
	words := []string{"ncu", "--set", "full", "--import-source", "yes", "--target-processes", "all",
		"--force-overwrite", "--export", report}
	if kernel != "" {
		words = append(words, "--kernel-name", kernel)
	}
	return commandLine(append(words, program...))
}

// Perf returns the command line with which Linux's perf tells which instructions of a C function take a program's time.
// It writes the samples to the file report, and shows them beside the machine code.
func Perf(function, report string, program ...string) string {
	record := append([]string{"perf", "record", "--output", report, "--"}, program...)
	show := []string{"perf", "annotate", "--stdio", "--input", report, "--symbol", function}
	return commandLine(record) + " && " + commandLine(show)
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine writes words as a POSIX shell reads them.
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
