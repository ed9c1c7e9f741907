"""Tables, figures and reports over replay results and round logs; never imports `real`."""
