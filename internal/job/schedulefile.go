package job

import (
	"fmt"
	"io"
	"strings"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/step"
)

// maxSchedule is the maximum size of a schedule file in bytes.
const maxSchedule = 64 << 20

// ReadSchedule reads a schedule from a file, or from standard input if the path is -. It detects the format, CSV or the
// text of [step.Parse], by the first line.
func ReadSchedule(path string, in io.Reader) (*step.Plan, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = userfile.ReadAll(in, "the standard input", maxSchedule)
	} else {
		text, err = userfile.Read(path, maxSchedule)
	}
	if err != nil {
		return nil, err
	}
	var s *step.Plan
	if isText(string(text)) {
		s, err = step.Parse(string(text))
	} else {
		s, err = step.ReadCSV(strings.NewReader(string(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// isText reports whether the text is in the format of [step.Parse], not CSV, by its first line that is no comment.
func isText(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			word, _, _ := strings.Cut(line, " ")
			return word == "schedule" || word == "plan"
		}
	}
	return false
}
