package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/pipeline"
)

// rates are the schedules of the learning rate.
var rates = []string{"constant", "cosine", "linear"}

// scheduleFlag is --schedule, whose name both pipelines and the learning rate have a right to: their values tell them apart. It sets
// one of two other flags.
type scheduleFlag struct{ flags *pflag.FlagSet }

const (
	rateFlag     = "lr-schedule"
	pipelineFlag = "pipe-schedule" // which is hidden
)

func addScheduleFlag(f *pflag.FlagSet) error {
	f.Var(&scheduleFlag{f}, "schedule", fmt.Sprintf("with --pipe, who computes what in which order: "+
		"one of %q (default %s), of which the last three update stages at different times; or, as --%s, one of %q", pipeline.Kinds(), pipeline.Kind1F1B, rateFlag, rates))
	return f.MarkHidden(pipelineFlag)
}

// Set implements [pflag.Value].
func (s *scheduleFlag) Set(value string) error {
	kind := strings.ToLower(value)
	switch {
	case slices.Contains(rates, kind):
		return s.flags.Set(rateFlag, kind)
	case slices.Contains(pipeline.Kinds(), pipeline.Kind(kind)):
		return s.flags.Set(pipelineFlag, kind)
	}
	return fmt.Errorf("want one of %q for a pipeline, or of %q for the learning rate", pipeline.Kinds(), rates)
}

// String implements [pflag.Value].
func (s *scheduleFlag) String() string { return "" }

// Type implements [pflag.Value].
func (s *scheduleFlag) Type() string { return "string" }
