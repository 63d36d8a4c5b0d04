"""From one model to another: partition, aggregation, embedding."""
