package trace

import (
	"strconv"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
)

// Roof is what a machine can do at most: floating-point operations a second, and bytes a second to and from memory.
// Either is better measured than read off a data sheet, by an operation that does little else.
//
// Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
// architectures", CACM 52(4), 2009.
type Roof struct{ FLOPS, Bandwidth float64 }

// Operation is work that took a time.
type Operation struct {
	Name string
	Work
	Time time.Duration
}

// Operations returns the rows that have counted work, each with the work and time of all its calls.
func (t Table) Operations() (ops []Operation) {
	for _, r := range t {
		if r.Work != (Work{}) {
			ops = append(ops, Operation{r.Name, r.Work, r.Total})
		}
	}
	return ops
}

// intensity is the floating-point operations for a byte moved: infinite without bytes, and NaN without work.
func (w Work) intensity() float64 { return float64(w.FLOPs) / float64(w.Bytes) }

// Rate is the floating-point operations a second.
func (o Operation) Rate() float64 { return float64(o.FLOPs) / o.Time.Seconds() }

// Ridge is the intensity from which on the roof is level: the least that can reach the machine's peak.
func (r Roof) Ridge() float64 { return r.FLOPS / r.Bandwidth }

// Least is the time in seconds that the machine needs for work, if it computes and moves bytes at once, each as fast as
// it can.
func (r Roof) Least(w Work) float64 {
	return max(float64(w.FLOPs)/r.FLOPS, float64(w.Bytes)/r.Bandwidth)
}

// Share is the least time that an operation needs by the time that it took. Of an operation that computes it is
// also the share of the attainable rate that it reached. Above 1, the roof is too low or the work less than counted.
func (r Roof) Share(o Operation) float64 { return r.Least(o.Work) / o.Time.Seconds() }

// Chart draws operations under the roof. Those that compute nothing, move nothing or took no time have no place there.
func (r Roof) Chart(title string, ops ...Operation) *chart.Chart {
	var points []chart.Point
	for _, o := range ops {
		if o.FLOPs > 0 && o.Bytes > 0 && o.Time > 0 {
			points = append(points, chart.Point{Name: o.Name, X: o.intensity(), Y: o.Rate()})
		}
	}
	return chart.Roofline(title, r.FLOPS, r.Bandwidth, points...)
}

// Table tells of each operation its intensity, its rates, what bounds it, and the share of the roof that it reached.
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
