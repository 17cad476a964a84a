"""Curves over steps as SVG, without a library: the mean over seeds, and the range between the lowest and the highest seed."""

import math
import statistics

COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 640, 360, 60, 20, 50, 34


def curves(title, series, marks=(), most_ticks=8):
    """`series` maps a name to the curves of its seeds, each a map from step to value. `marks` are pairs of a name and a value: dashed lines."""
    seeds = [points for curves_ in series.values() for points in curves_]
    steps = sorted(set.intersection(*map(set, seeds)))
    highest = max([points[step] for points in seeds for step in steps] + [value for _, value in marks])
    tick = 10 ** math.floor(math.log10(highest)) / 2
    ceiling = math.ceil(highest / tick) * tick
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / ceiling
    at = lambda points: " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    text = lambda px, py, words, more="": f'<text x="{px:.0f}" y="{py:.0f}" {more}>{words}</text>'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', text(LEFT, 18, title, 'font-size="13"')]
    for i in range(round(ceiling / tick) + 1):
        parts.append(f'<path d="M{LEFT} {y(i * tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y(i * tick) + 4, f"{i * tick:g}", 'text-anchor="end"'))
    every = math.ceil(len(steps) / most_ticks)
    parts += [text(x(step), HEIGHT - BOTTOM + 18, step, 'text-anchor="middle"') for step in steps[::every]]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "step", 'text-anchor="middle"'))
    for name, value in marks:
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#777" stroke-dasharray="5 4"/>')
        parts.append(text(LEFT + 6, y(value) - 5, name, 'fill="#555"'))
    for i, (name, found) in enumerate(series.items()):
        of, color = (lambda step: [points[step] for points in found]), COLORS[i % len(COLORS)]
        low, high = [(s, min(of(s))) for s in steps], [(s, max(of(s))) for s in steps]
        parts.append(f'<polygon points="{at(high)} {at(low[::-1])}" fill="{color}" opacity="0.18"/>')
        parts.append(f'<polyline points="{at([(s, statistics.mean(of(s))) for s in steps])}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(series) > 1:
            parts.append(text(WIDTH - 130, TOP + 18 + 18 * i, name, f'fill="{color}"'))
    return "\n".join(parts) + "\n</svg>\n"
