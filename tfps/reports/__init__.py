"""Reports about a model on its cluster: plain rows in; a table, HTML, a data frame or a plot out."""
