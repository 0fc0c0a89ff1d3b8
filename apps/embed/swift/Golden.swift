import Foundation
import XCTest

/// A golden sample: raw little-endian values, and the comparison that `edgekit test` makes of them.
enum Golden {
    static func values<Scalar>(_ name: String, as type: Scalar.Type) throws -> [Scalar] {
        let url = try XCTUnwrap(Bundle.module.url(forResource: name, withExtension: "raw", subdirectory: "golden"))
        let data = try Data(contentsOf: url)
        return data.withUnsafeBytes { raw in
            (0..<data.count / MemoryLayout<Scalar>.stride).map { raw.loadUnaligned(fromByteOffset: $0 * MemoryLayout<Scalar>.stride, as: Scalar.self) }
        }
    }

    /// Signal to error, in dB, of at least `leastDb`.
    static func check(_ output: String, _ expected: [Float], _ got: [Float], leastDb: Double) {
        XCTAssertEqual(expected.count, got.count, output)
        let signal = expected.reduce(0.0) { $0 + Double($1) * Double($1) }
        let error = zip(expected, got).reduce(0.0) { $0 + (Double($1.0) - Double($1.1)) * (Double($1.0) - Double($1.1)) }
        let db = error == 0 ? Double.infinity : 10 * log10(signal / error)
        XCTAssertGreaterThanOrEqual(db, leastDb, "\(output) is \(db) dB from the desktop's answer")
    }

    static func check(_ output: String, _ expected: [Int32], _ got: [Int32], leastDb: Double) {
        XCTAssertEqual(expected, got, output)
    }
}
