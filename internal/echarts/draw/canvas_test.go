package draw

import (
	"image"
	"math"
	"testing"

	"git.sr.ht/~sbinet/gg"
)

// TestCanvas compares what is covered with what geometry says.
func TestCanvas(t *testing.T) {
	const box, right = "c.beginPath(); c.rect(0, 0, 10, 10); ", "c.beginPath(); c.moveTo(10, 10); c.lineTo(60, 10); "
	for _, test := range []struct {
		name, script string
		want         float64 // pixels, all black
	}{
		{"a rectangle", "c.fillRect(10, 10, 20, 30)", 600},
		{"a line", right + "c.lineWidth = 4; c.stroke()", 200},
		{"with round ends", right + "c.lineWidth = 4; c.lineCap = 'round'; c.stroke()", 200 + 4*math.Pi},
		{"grown", "c.setTransform(1.5, 0, 0, 1.5, 0, 0); " + right + "c.lineWidth = 4; c.stroke()", 450},
		{"dashed", right + "c.lineTo(60, 40); c.lineWidth = 2; c.setLineDash([8, 4]); c.stroke()", 112},
		{"a closed line has its corners", "c.beginPath(); c.rect(50, 50, 20, 20); c.lineWidth = 8; c.stroke()",
			28*28 - 12*12 - 16*(4-math.Pi)},
		{"a disc", "c.beginPath(); c.arc(50, 50, 20, 0, 2 * Math.PI); c.fill()", math.Pi * 400},
		{"half of an ellipse, turned", "c.beginPath(); c.ellipse(50, 50, 40, 20, 1, 0, Math.PI); c.fill()",
			math.Pi * 400},
		{"scaled", "c.setTransform(2, 0, 0, 3, 5, 5); " + box + "c.fill()", 600},
		{"turned", "c.setTransform(0.6, -0.8, 0.8, 0.6, 40, 40); " + box + "c.fill()", 100},
		{"sheared", "c.setTransform(2, 1, 1, 3, 5, 5); " + box + "c.fill()", 500},
		{"a curve", "c.beginPath(); c.moveTo(0, 0); c.quadraticCurveTo(50, 100, 100, 0); c.fill()", 100 * 100 / 3.},
		{"the same as a cubic", "c.beginPath(); c.moveTo(0, 0); " +
			"c.bezierCurveTo(100/3, 200/3, 200/3, 200/3, 100, 0); c.fill()", 100 * 100 / 3.},
		{"half transparent", "c.globalAlpha = 0.5; c.fillStyle = 'rgba(0,0,0,0.5)'; c.fillRect(0, 0, 20, 20)", 100},
		{"clipped", "c.save(); " + box + "c.clip(); c.fillRect(5, 5, 20, 20); c.restore(); c.fillRect(50, 50, 10, " +
			"10)", 125},
		{"a gradient", "var g = c.createLinearGradient(0, 0, 100, 0); g.addColorStop(0, 'rgba(0,0,0,0)'); " +
			"g.addColorStop(1, '#000'); c.fillStyle = g; c.fillRect(0, 0, 100, 20)", 1000},
		{"out of sight", "c.fillRect(-1000, -1000, 10, 10)", 0},
	} {
		on, err := drawOn(test.script)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, m := 0.0, on.Image().(*image.RGBA)
		for i := 3; i < len(m.Pix); i += 4 {
			got += float64(m.Pix[i]) / 255
		}
		if math.Abs(got-test.want) > 2+test.want/100 {
			t.Errorf("%s covers %.1f pixels, want %.1f", test.name, got, test.want)
		}
	}
}

// drawOn runs a script with a canvas of 100 x 100 pixels as c.
func drawOn(script string) (*canvas, error) {
	e := &Engine{}
	if err := e.load(); err != nil {
		return nil, err
	}
	on := &canvas{Context: gg.NewContext(100, 100)}
	e.vm.Set("go", on)
	_, err := e.vm.RunString("var c = canvas(go).getContext(); c.fillStyle = c.strokeStyle = '#000'; " + script)
	return on, err
}
