package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

var colours = map[string]color.Color{"a": color.RGBA{R: 0x7f, G: 0x7f, B: 0x7f, A: 0xff}, "b": color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}}

// plotSummary draws, for each setting, the throughput of both sides and the server CPU of an operation, both on
// logarithmic scales, one above the other.
func plotSummary(path string, rows []*row) error {
	rate, err := points("operations per second", rows, func(t *total) float64 { return t.rate() })
	if err != nil {
		return err
	}
	cpu, err := points("server CPU per operation, µs", rows, func(t *total) float64 { return t.cpuPerOp() * 1e6 })
	if err != nil {
		return err
	}
	width := vg.Length(max(8, len(rows))) * 1.5 * vg.Centimeter
	img := vgimg.New(width, 24*vg.Centimeter)
	dc := draw.New(img)
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(6), PadY: vg.Points(12)}
	plots := [][]*plot.Plot{{rate}, {cpu}}
	for i, canvases := range plot.Align(plots, tiles, dc) {
		plots[i][0].Draw(canvases[0])
	}
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(f); err != nil {
		f.Close()
		return fmt.Errorf("--plot: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	return nil
}

// points puts one mark per setting and side. They are no bars: a bar has no foot on a logarithmic scale.
func points(title string, rows []*row, value func(*total) float64) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	var names []string
	for _, r := range rows {
		names = append(names, fmt.Sprintf("%s\nx%d\n%dn %dr", r.workload, r.clients, r.nodes, r.ranges))
	}
	low, high := math.Inf(1), 0.0
	for i, side := range []string{"a", "b"} {
		var xys plotter.XYs
		kind := ""
		for n, r := range rows {
			t := r.side[side]
			if t == nil {
				continue
			}
			if v := value(t); v > 0 && !math.IsInf(v, 0) {
				xys, kind = append(xys, plotter.XY{X: float64(n), Y: v}), t.kind
				low, high = min(low, v), max(high, v)
			}
		}
		if len(xys) == 0 {
			continue
		}
		s, err := plotter.NewScatter(xys)
		if err != nil {
			return nil, fmt.Errorf("--plot: %w", err)
		}
		s.Color, s.Radius, s.Shape = colours[side], vg.Points(4), []draw.GlyphDrawer{draw.BoxGlyph{}, draw.CircleGlyph{}}[i]
		p.Add(s)
		p.Legend.Add(side+": "+kind, s)
	}
	if high == 0 {
		low, high = 1, 10
	}
	p.NominalX(names...)
	p.Y.Min, p.Y.Max = low/1.5, high*1.5
	return p, nil
}
