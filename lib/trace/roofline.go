package trace

import (
	"strconv"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
)

// Roof is the peak performance of a machine: FLOP/s, and bytes/s to and from memory. Measured values, from an operation
// that is limited by one of them, are better than those of a data sheet.
//
// Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
// architectures", CACM 52(4), 2009.
type Roof struct{ FLOPS, Bandwidth float64 }

// Operation is an operation of a trace: its work and its time.
type Operation struct {
	Module string // of the compiled program; "" if it is of none
	Name   string
	Work
	Time time.Duration
}

// Operations returns the rows whose work was counted, each with the work and time of all its calls.
func (t Table) Operations() (ops []Operation) {
	for _, r := range t {
		if r.Work != (Work{}) {
			ops = append(ops, Operation{Name: r.Name, Work: r.Work, Time: r.Total})
		}
	}
	return ops
}

// intensity is FLOPs per byte moved: infinite without bytes, NaN without work.
func (w Work) intensity() float64 { return float64(w.FLOPs) / float64(w.Bytes) }

// Rate is the speed in FLOP/s.
func (o Operation) Rate() float64 { return float64(o.FLOPs) / o.Time.Seconds() }

// Ridge is the least intensity (FLOP/byte) that can reach the machine's peak.
func (r Roof) Ridge() float64 { return r.FLOPS / r.Bandwidth }

// Least is the shortest time in seconds in which the machine can do the work, if computation and memory traffic
// overlap.
func (r Roof) Least(w Work) float64 {
	return max(float64(w.FLOPs)/r.FLOPS, float64(w.Bytes)/r.Bandwidth)
}

// Share is the shortest possible time divided by the time taken. For an operation with FLOPs this is also the fraction
// of the attainable FLOP/s. A value above 1 means that the roof is too low or too much work was counted.
func (r Roof) Share(o Operation) float64 { return r.Least(o.Work) / o.Time.Seconds() }

// Chart draws operations under the roof, except those without FLOPs, bytes or time.
func (r Roof) Chart(title string, ops ...Operation) *chart.Chart {
	var points []chart.Point
	for _, o := range ops {
		if o.FLOPs > 0 && o.Bytes > 0 && o.Time > 0 {
			points = append(points, chart.Point{Name: o.Name, X: o.intensity(), Y: o.Rate()})
		}
	}
	return chart.Roofline(title, r.FLOPS, r.Bandwidth, points...)
}

// Table shows each operation's intensity, rates, limiting resource, and fraction of the roof.
func (r Roof) Table(title string, ops ...Operation) *chart.Chart {
	rows := make([][]string, len(ops))
	for i, o := range ops {
		bound := "compute"
		if float64(o.Bytes)/r.Bandwidth > float64(o.FLOPs)/r.FLOPS {
			bound = "memory"
		}
		rows[i] = []string{
			oneLine(o.Name), inMS(o.Time), number(o.intensity()), perNanosecond(o.FLOPs,
				o.Time), perNanosecond(o.Bytes, o.Time),
			bound, strconv.FormatFloat(100*r.Share(o), 'f', 1, 64),
		}
	}
	return chart.Table(title, []string{"name", "ms", "FLOP/byte", "GFLOP/s", "GB/s", "bound by", "% of roof"}, rows)
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
