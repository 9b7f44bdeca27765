"""Models of P(y|x), and of P_r(y|x) had the forget data never been there; the paper's are closed forms.  [sec:lda2c]"""
