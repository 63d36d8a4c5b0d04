"""Results of the papers on trees and models that no algorithm of the package needs."""
