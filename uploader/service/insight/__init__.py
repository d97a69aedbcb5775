"""What administrators and operators ask: reports, totals, gauges, health.

Changes nothing but the snapshot of a day.
"""
