package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/memest"
)

// compiledFor is the result of --compile-for.
type compiledFor struct {
	GPU       string           `json:"gpu"`
	Devices   int              `json:"devices"`
	Arrays    int64            `json:"arrays"`    // bytes, the most that lie on a device between programs
	Temporary int64            `json:"temporary"` // bytes, the most that a program allocates while it runs
	Kinds     map[string]int64 `json:"kinds"`     // bytes, the most of each kind
}

// compile compiles all programs of a step for the GPU of --compile-for, and prints what a device needs.
func (t *training) compile(ctx context.Context) error {
	t.run.loads = nil
	if err := t.run.Train(ctx, t.run.Steps()+1, t.batches.Step, func(metrics) error { return nil }); err != nil {
		return err
	}
	kinds, err := t.run.Memory()
	if err != nil {
		return err
	}
	r := compiledFor{t.options.compileFor, t.devices, t.run.peak(), kinds[string(memest.Temporary)], kinds}
	if t.options.json {
		return json.NewEncoder(t.out).Encode(r)
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		parts = append(parts, kind+" "+bytesText(kinds[kind]))
	}
	_, err = fmt.Fprintf(t.out, "compiled      for %s: %s on a device while a step runs (%s)\n", strings.ToUpper(r.GPU),
		bytesText(r.Arrays+r.Temporary), strings.Join(parts, ", "))
	return err
}

// validateCompile returns an error for what --compile-for cannot do, because it does not train.
func (o *trainOptions) validateCompile() error {
	if o.compileFor == "" {
		return nil
	}
	for _, given := range []struct {
		flag string
		is   bool
	}{{"checkpoint", o.checkpoint != ""}, {"sample", o.sample > 0}, {"log", o.log != ""}, {"trace", o.trace != ""},
		{"chart", o.chart != ""}, {"tensorboard", o.tensorboard != ""}, {"engine", o.engine == engineMPI}} {
		if given.is {
			return errors.New("--compile-for compiles, and trains nothing: leave out --" + given.flag)
		}
	}
	return nil
}
