package main

import (
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/xla"
)

// collective is xla.Traffic: the operations of one kind that a device takes part in, in a step.
type collective struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"` // of their data on the device
}

// collectives are those of the program whose devices share layers or sequences, as it was compiled, or nil if there is none
// or it has not run.
func (t *training) collectives() (all []collective, err error) {
	run, ok := t.run.(interface{ Collectives() (xla.Report, error) })
	if !ok || len(t.records) == 0 || t.job.Parallel.sharing() == "" {
		return nil, nil
	}
	report, err := run.Collectives()
	for _, c := range report {
		all = append(all, collective{c.Kind.String(), c.Count, c.Bytes})
	}
	return all, err
}

// collectivesText says it to people.
func collectivesText(all []collective) string {
	var parts []string
	for _, c := range all {
		parts = append(parts, fmt.Sprintf("%s ×%d, %s", c.Kind, c.Count, bytesText(c.Bytes)))
	}
	return strings.Join(parts, "; ")
}
