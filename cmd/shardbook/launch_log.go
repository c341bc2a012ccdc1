package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/shardbook/shardbook/internal/userfile"
)

// log returns the value of train's --log.
func (l *launchJob) log() string { return l.train.Flags().Lookup("log").Value.String() }

// lastLogged is the step of the last complete line of a log, or -1.
func lastLogged(path string) int {
	file, err := userfile.Open(path, math.MaxInt64)
	if err != nil {
		return -1
	}
	defer file.Close()
	const enough = 64 << 10 // bytes, for several lines
	info, err := file.Stat()
	if err != nil {
		return -1
	}
	begin := max(0, info.Size()-enough)
	text, err := io.ReadAll(io.NewSectionReader(file, begin, enough))
	if err != nil {
		return -1
	}
	for _, line := range slices.Backward(bytes.Split(text, []byte("\n"))) {
		var r stepRecord
		if json.Unmarshal(line, &r) == nil && r.Step > 0 {
			return r.Step
		}
	}
	return -1
}

// startOver empties train's --log before a run from the beginning, since train rejects a log with lines. Lines of
// earlier starts of this command are dropped, because nothing of these was saved. A log that existed before this
// command is renamed, and its new name returned. A file that is not a log is not changed; train rejects it.
func (l *launchJob) startOver() (moved string, err error) {
	path := l.log()
	info, err := os.Stat(path)
	if path == "" || err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return "", nil
	}
	old, err := openLog(path, math.MaxInt)
	if err != nil {
		return "", nil
	}
	old.close()
	if l.starts > 0 {
		err = os.Truncate(path, 0)
	} else {
		moved = unused(path)
		err = os.Rename(path, moved)
	}
	if err != nil {
		return "", fmt.Errorf("--log: %w", err)
	}
	return moved, nil
}

// unused returns the path with the first number appended for which there is no file.
func unused(path string) string {
	for i := 1; ; i++ {
		name := fmt.Sprintf("%s.%d", path, i)
		if _, err := os.Lstat(name); err != nil {
			return name
		}
	}
}
