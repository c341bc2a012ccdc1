package main

import "slices"

// compared is a result with the times that count: those that it took, or its costs.
type compared struct {
	result
	least float64 // of the times; of costs the least time over the base's least
}

// costs returns the results with the times of those that have a base divided by its.
// Without the base they have no cost, and are compared with nobody: they become bases.
func costs(results []result) (all []compared) {
	for _, r := range results {
		c := compared{r, r.times.min()}
		if r.over != "" {
			if i := slices.IndexFunc(results, func(b result) bool { return b.name == r.over }); i < 0 {
				c.role = base
			} else {
				c.least /= results[i].times.min()
				c.times = nil
				for round, t := range r.times {
					c.times = append(c.times, t/results[i].times[round])
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// side is what the implementations of one role and class took for a case.
type side struct {
	times   []sampleTimes
	least   float64   // of all times
	best    result    // that of the least median
	leanest footprint // of those who plan their memory, that of the least in all
}

func sideOf(r role, class string, results []compared) (s side) {
	for _, res := range results {
		if res.role != r || res.class != class {
			continue
		}
		if s.times == nil || res.least < s.least {
			s.least = res.least
		}
		if s.times == nil || res.times.median() < s.best.times.median() {
			s.best = res.result
		}
		if p := res.planned(); p > 0 && (s.leanest.planned() == 0 || p < s.leanest.planned()) {
			s.leanest = res.footprint
		}
		if len(res.times) > 0 {
			s.times = append(s.times, res.times)
		}
	}
	return s
}

// compare makes the records of one case.
func compare(name string, c testCase, results []result) []record {
	all := costs(results)
	var records []record
	for k, res := range all {
		we, they, bound := sideOf(ours, res.class, all), sideOf(peer, res.class, all), sideOf(limit, res.class, all)
		took := results[k].times
		rec := record{
			Bench: name, Case: c.name, Impl: res.name, Role: res.role, Class: res.class, Samples: took,
			MinMS: round(took.min()), MedianMS: round(took.median()), Rounds: len(took),
			footprint: res.footprint,
		}
		if res.over != "" && res.role != base {
			rec.Over, rec.Cost, rec.MinCost = res.over, round(res.times.median()), round(res.least)
		}
		switch res.role {
		case ours:
			if they.times != nil {
				rec.compareTimes(pairRatios(res.times, they.times), they.least/res.least)
				rec.Best = they.best.name
			}
			if bound.times != nil {
				rec.OfLimit = round(median(pairRatios(res.times, bound.times)))
			}
			rec.compareMemory(they.leanest, res.footprint)
		case peer, variant:
			if we.times != nil {
				ratios := pairRatios(res.times, we.times)
				for i, r := range ratios {
					ratios[i] = 1 / r // theirs over ours, as on our lines
				}
				rec.compareTimes(ratios, res.least/we.least)
			}
			rec.compareMemory(res.footprint, we.leanest)
		}
		if c.describe != nil {
			c.describe(&rec)
		}
		records = append(records, rec)
	}
	return records
}

func (r *record) compareTimes(ratios []float64, ofLeast float64) {
	r.Ratio, r.RatioMin, r.MinRatio = round(median(ratios)), round(slices.Min(ratios)), round(ofLeast)
}

// compareMemory sets ratios where both sides plan their memory, and times are compared.
func (r *record) compareMemory(theirs, ours footprint) {
	if r.Over != "" { // memory is a device's, and there are different numbers of devices
		return
	}
	if theirs.planned() > 0 && ours.planned() > 0 {
		r.MemoryRatio = round(float64(theirs.planned()) / float64(ours.planned()))
	}
	if theirs.Temporary > 0 && ours.Temporary > 0 {
		r.TempRatio = round(float64(theirs.Temporary) / float64(ours.Temporary))
	}
}
